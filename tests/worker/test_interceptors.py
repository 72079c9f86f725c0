"""Every error that a caller can meet has its status, and no unforeseen one leaks its text."""

import asyncio
import weakref

import grpc
import grpc.aio
import pytest

from servax_worker import errors
from servax_worker.interceptors import GuardedServer, status_of

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


def test_the_first_failure_of_a_group_is_told():
    """A stream that one of its tasks ends is answered as that task's error is."""
    group = ExceptionGroup("tasks", [ExceptionGroup("more", [errors.NotReady("wait")])])

    assert status_of(group, "PredictStream") == (grpc.StatusCode.UNAVAILABLE, "wait")


def test_a_failed_call_holds_nothing():
    """What a request held is let go when it fails, although gRPC keeps the context alive and in it
    the exception that ended the call.
    """

    class Request:
        pass

    class Server:
        def add_generic_rpc_handlers(self, handlers):
            pass

        def add_registered_method_handlers(self, service, handlers):
            self.handlers = handlers

    class Context:
        async def abort(self, *status):
            self.error = grpc.aio.AbortError()
            raise self.error

    async def fail(request, context):
        data = Request()
        seen.append(weakref.ref(data))
        raise errors.InvalidInput("no")

    async def scenario():
        handlers = {"Predict": grpc.unary_unary_rpc_method_handler(fail)}
        server = Server()
        GuardedServer(server).add_registered_method_handlers("servax.v1.Prediction", handlers)
        guarded = server.handlers["Predict"].unary_unary
        request, context = Request(), Context()
        seen.append(weakref.ref(request))
        call = guarded(request, context)
        del request
        with pytest.raises(grpc.aio.AbortError):
            await call
        return context

    seen = []
    context = asyncio.run(scenario())

    assert isinstance(context.error, grpc.aio.AbortError)
    assert [reference() for reference in seen] == [None, None]
