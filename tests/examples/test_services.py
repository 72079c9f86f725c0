"""The demo's processes."""

import pytest

from examples.services import (
    MODEL_CODE,
    ServiceFailed,
    clean_environment,
    environment_without_model_code,
    importable,
    service,
)


def test_worker_environment_cannot_import_model_code(tmp_path):
    """Where the worker runs, neither the libraries of the models nor their code can be imported."""
    environment = environment_without_model_code(tmp_path / "hidden")

    assert importable(["json", *MODEL_CODE], tmp_path, environment) == ["json"]


def test_service_runs_while_its_block_does(tmp_path):
    """The address is read from the log, and the process has ended when the block has."""
    database = f"sqlite:///{tmp_path / 'registry.db'}"
    arguments = ["serve", "--db", database, "--listen", "127.0.0.1:0"]

    with service("servax_registry", arguments, tmp_path, clean_environment()) as registry:
        registry.check()
        assert registry.address.startswith("127.0.0.1:")

    with pytest.raises(ServiceFailed, match="ended with status 0"):
        registry.check()


def test_service_that_does_not_start_shows_its_log(tmp_path):
    """A service that ends at once is an error that says what it said."""
    with (
        pytest.raises(ServiceFailed, match="No such option"),
        service("servax_registry", ["serve", "--nonsense"], tmp_path, clean_environment()),
    ):
        pass


def test_service_ends_when_the_demo_fails(tmp_path):
    """Whatever goes wrong in the block, the process is gone afterwards."""
    database = f"sqlite:///{tmp_path / 'registry.db'}"
    arguments = ["serve", "--db", database, "--listen", "127.0.0.1:0"]

    with (
        pytest.raises(KeyboardInterrupt),
        service("servax_registry", arguments, tmp_path, clean_environment()) as registry,
    ):
        raise KeyboardInterrupt

    with pytest.raises(ServiceFailed):
        registry.check()
