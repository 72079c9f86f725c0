"""The exception tree and the table from gRPC's status codes."""

import grpc
import pytest

from servax import errors
from servax.errors import BY_STATUS, ServaxError, from_status, translated
from servax_proto.v1.registry_pb2 import GetModelRequest
from servax_proto.v1.registry_pb2_grpc import RegistryStub

PEER = "registry at 127.0.0.1:8400"


def test_the_table_is_complete():
    """Every status but OK has an exception."""
    assert set(grpc.StatusCode) - {grpc.StatusCode.OK} == set(BY_STATUS)


def test_the_tree_in_the_documentation_is_the_tree():
    """The module's documentation shows every exception under its base."""
    bases = {"ServaxError": "Exception"}
    stack = ["ServaxError"]
    for line in errors.__doc__.splitlines():
        stem, mark, rest = line.partition("── ")
        if mark:
            depth = len(stem) // 4
            del stack[depth:]
            name = rest.split()[0]
            bases[name] = stack[-1]
            stack.append(name)
    classes = [v for v in vars(errors).values() if isinstance(v, type) and v is not type]
    classes = [c for c in classes if issubclass(c, ServaxError)]

    assert {c.__name__: c.__bases__[0].__name__ for c in classes} == bases


@pytest.mark.parametrize("code", BY_STATUS)
def test_a_status_becomes_its_exception(code):
    """By code or by number, a status gives the exception of the table."""
    assert type(from_status(code, "said", PEER)) is BY_STATUS[code]
    assert type(from_status(code.value[0], "said", PEER)) is BY_STATUS[code]


def test_a_service_speaks_for_itself():
    """What the service says is the message."""
    assert str(from_status(grpc.StatusCode.NOT_FOUND, "no model 'x'", PEER)) == "no model 'x'"


def test_a_service_says_why_a_deadline_passed():
    """What a service says of a deadline is kept; gRPC's own words name nobody, and are not."""
    code = grpc.StatusCode.DEADLINE_EXCEEDED

    assert str(from_status(code, "it waited behind 7 others", PEER)) == "it waited behind 7 others"
    assert str(from_status(code, "Deadline Exceeded", PEER)) == f"the {PEER} did not answer in time"


def test_a_service_that_stops_is_unavailable():
    """A call that the service reset, as it does to those that it has not begun, may be repeated."""
    error = from_status(grpc.StatusCode.CANCELLED, "CANCELLED", PEER)

    assert type(error) is errors.Unavailable
    assert str(error) == f"the {PEER} ended the call without an answer; try again"


def test_a_status_without_a_message_names_the_service():
    """Where a service says nothing, the message says who answered and with what."""
    error = from_status(grpc.StatusCode.NOT_FOUND, "", PEER)

    assert str(error) == f"the {PEER} answered NOT_FOUND without a message"


def test_an_unknown_number_is_a_fault_of_the_service():
    """A code that gRPC does not have is an internal error."""
    assert type(from_status(99, "said", PEER)) is errors.Internal


def test_a_busy_service_is_not_unreachable():
    """UNAVAILABLE with the service's own words is Unavailable, and they are kept."""
    error = from_status(grpc.StatusCode.UNAVAILABLE, "mnist:3 is COMPILING", PEER)

    assert type(error) is errors.Unavailable
    assert str(error) == "mnist:3 is COMPILING"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "does not answer (connection refused): is it running?"),
        ("no-such-host.invalid:80", "does not answer (unknown host): is it running?"),
    ],
)
def test_nothing_there_is_unreachable(address, said):
    """Where nothing listens, the error names the address and the reason."""
    with grpc.insecure_channel(address) as channel:
        stub = RegistryStub(channel)
        with pytest.raises(errors.Unreachable) as caught, translated(f"registry at {address}"):
            stub.GetModel(GetModelRequest(), timeout=20)

    assert str(caught.value) == f"the registry at {address} {said}"
