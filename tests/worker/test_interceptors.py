"""Every error that a caller can meet has its status, and no unforeseen one leaks its text."""

import grpc
import pytest

from servax_worker import errors
from servax_worker.interceptors import status_of

INTERNAL_TO_THE_WORKER = {errors.Delayed, errors.StartupError}


@pytest.mark.parametrize(
    "kind", sorted(set(errors.WorkerError.__subclasses__()) - INTERNAL_TO_THE_WORKER, key=str)
)
def test_every_error_has_a_status(kind):
    """An error of the domain is answered by the table, with its own message."""
    code, message = status_of(kind("what is wrong"), "Predict")

    assert code is not grpc.StatusCode.UNKNOWN
    assert message == "what is wrong"


def test_unforeseen_errors_keep_their_text():
    """Any other exception is INTERNAL and says only where to look."""
    code, message = status_of(ZeroDivisionError("secret"), "Predict")

    assert code is grpc.StatusCode.INTERNAL
    assert message == "internal error; the worker's log tells more"


def test_long_messages_are_cut():
    """A message stays within what gRPC's trailers carry, and within whole characters."""
    _, message = status_of(errors.InvalidInput("ü" * 5000), "Predict")

    assert message == "ü" * 1000 + "…"
