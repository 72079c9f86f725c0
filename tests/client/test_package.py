"""What `import servax` gives, and what it costs."""

import subprocess
import sys
from types import ModuleType

import servax


def test_all_is_everything_public():
    """`__all__` is sorted and holds every public name that is no module."""
    public = [
        name
        for name, value in vars(servax).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]

    assert sorted(public) == servax.__all__


def test_importing_is_light():
    """Importing the library loads neither JAX nor anything that only services or the CLI need."""
    code = "import servax, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}

    assert "servax" in loaded
    assert not loaded & {"jax", "jaxlib", "sqlalchemy", "rich", "click", "structlog", "safetensors"}
