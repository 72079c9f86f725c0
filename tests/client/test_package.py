"""What `import servax` gives, and what it costs."""

import subprocess
import sys
from types import ModuleType

import pytest

import servax


def test_all_is_everything_public():
    """`__all__` is sorted and holds every public name that is no module; each can be had."""
    public = {
        name
        for name, value in vars(servax).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert sorted(public | {"AsyncClient", "Client"}) == servax.__all__
    assert all(getattr(servax, name) for name in servax.__all__)
    with pytest.raises(AttributeError, match="module 'servax' has no attribute 'Klient'"):
        servax.Klient  # noqa: B018


def test_importing_is_light():
    """Importing the library loads neither JAX nor anything that only services or the CLI need, and
    numpy and protobuf only with the clients.
    """
    code = "import servax, sys; print(*sys.modules); servax.Client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    without, loaded = (
        {name.split(".")[0] for name in line.split()} for line in done.stdout.splitlines()
    )

    assert "servax" in without
    assert not without & {"numpy", "ml_dtypes", "google"}
    assert "numpy" in loaded
    assert not loaded & {"jax", "jaxlib", "sqlalchemy", "rich", "click", "structlog", "safetensors"}
