"""What clients of either kind do with a worker."""

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from servax import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    InvalidTensor,
    ModelReference,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ServedState,
    ServedVersion,
    Unreachable,
    WorkerStatus,
)
from servax._calls.worker import MESSAGE_BYTES

X = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.random.default_rng(0).random((700, 1000))  # 5.6 MB


@pytest.mark.parametrize(
    "x", [X, X.astype(ml_dtypes.bfloat16), X.T, np.float32(3), [[1, 2]], True], ids=range(6)
)
def test_an_answer_is_a_dict_of_arrays(client, x):
    """What goes in as x comes back as output, with its dtype, shape and elements."""
    answer = client.predict("echo", {"x": x})

    assert list(answer) == ["output"]
    assert np.asarray(x).dtype == answer["output"].dtype
    np.testing.assert_array_equal(np.asarray(x), answer["output"])


@pytest.mark.parametrize("x", [X, LARGE], ids=["whole", "in parts"])
def test_a_request_says_what_was_asked(client, worker, x):
    """Model, version or alias, signature and outputs reach the worker, in parts as in one piece."""
    inputs = {"x": x, "y": np.array([1, 2], np.int8), "empty": np.zeros((0, 3), np.int16)}
    client.predict("echo:7", inputs, signature="decode", outputs=["y"])
    client.predict("echo@canary", inputs)
    answer = client.predict(ModelReference("echo"), inputs, outputs=["output", "empty"])

    first, second, third = worker.requests
    assert (first.model, first.version, first.alias) == ("echo", 7, "")
    assert (first.signature, list(first.outputs)) == ("decode", ["y"])
    assert (second.version, second.alias, second.signature) == (0, "canary", "serving_default")
    assert third.WhichOneof("selector") is None
    assert {"output", "empty"} == set(answer)
    assert (answer["output"] == x).all()
    assert answer["empty"].shape == (0, 3)


def test_a_large_request_travels_in_parts(client, worker):
    """What does not fit gRPC's default limit goes in parts below it, and comes back whole."""
    answer = client.predict("echo", {"x": LARGE, "y": LARGE[:10]})

    assert (answer["output"] == LARGE).all()
    assert (answer["y"] == LARGE[:10]).all()
    assert len(worker.parts) > 5
    assert max(worker.parts) < (4 << 20)


def test_the_largest_whole_request_fits_a_message(client, worker):
    """A request just below the limit goes in one piece; a byte more, and it goes in parts."""
    x = np.zeros(MESSAGE_BYTES - 60, np.uint8)
    client.predict("echo", {"x": x})

    assert worker.parts == []

    client.predict("echo", {"x": np.zeros(MESSAGE_BYTES, np.uint8)})

    assert worker.parts


def test_a_large_answer_to_a_small_request_is_taken(client, worker):
    """An answer in one message may be larger than gRPC's default limit."""
    worker.repeat = 1_000_000

    assert client.predict("echo", {"x": X})["output"].shape == (2_000_000, 3)


def test_an_answer_that_fits_no_message_is_asked_for_in_parts(client, worker):
    """Where the worker says that an answer is too large for one message, it comes in parts."""
    worker.repeat, worker.largest = 1_000_000, 1 << 20

    assert client.predict("echo", {"x": X})["output"].shape == (2_000_000, 3)
    assert len(worker.parts) == 1


@pytest.mark.parametrize("x", [X, LARGE], ids=["whole", "in parts"])
def test_a_refusal_is_raised(client, x):
    """What the worker says is wrong is raised, in parts as in one piece."""
    with pytest.raises(NotFound, match="'other' is not served; there are: echo"):
        client.predict("other", {"x": x})
    with pytest.raises(InvalidArgument, match="input 'x' is missing"):
        client.predict("echo", {"y": x})


@pytest.mark.parametrize("x", [X, LARGE], ids=["whole", "in parts"])
def test_a_refusal_tells_when_to_try_again(client, x):
    """A worker whose queue is full says when to come back, and the exception has that."""
    with pytest.raises(ResourceExhausted, match="the queue is full") as caught:
        client.predict("busy", {"x": x})

    assert caught.value.retry_after == 1.5


def test_an_input_that_cannot_be_sent_is_named(client, worker):
    """An input that is no array of numbers is named before anything is sent."""
    with pytest.raises(InvalidTensor, match="input 'x': arrays of <U4 cannot be sent"):
        client.predict("echo", {"x": "text"})

    assert worker.requests == []


def test_a_lone_name_is_no_list_of_outputs(client, worker):
    """A text in place of a list of outputs is refused, and the message shows the list."""
    with pytest.raises(InvalidArgument, match=re.escape("outputs takes a list: outputs=['y']")):
        client.predict("echo", {"x": X}, outputs="y")

    assert worker.requests == []


def test_half_an_answer_is_none(client, worker):
    """An answer whose end is missing is not taken for one."""
    worker.truncate = True

    with pytest.raises(Internal, match="before the end of its answer"):
        client.predict("echo", {"x": LARGE})


def test_the_status_is_what_the_worker_says(client, worker):
    """A worker tells its platform, its JAX and what it serves, of one model or all."""
    status = client.status()

    assert (status.platform, status.jax_version) == ("cpu", "0.12.0")
    assert status.versions == worker.served
    assert client.status("echo") == status
    assert client.status("other").versions == ()


def state(worker: Any, name: str, **changes: Any) -> tuple[ServedVersion, ...]:
    """Give what the worker says while its version is in a state."""
    return (replace(worker.served[0], state=ServedState[name], **changes),)


@pytest.mark.parametrize("reference", ["echo", "echo:1", "echo@canary"])
def test_a_version_is_waited_for(client, worker, reference):
    """Waiting ends when the version is READY."""
    worker.history = [
        state(worker, "RESOLVING", version=0, alias="canary"),
        state(worker, "COMPILING", alias="canary"),
        state(worker, "READY", alias="canary"),
    ]

    assert client.wait_until_ready(reference) == state(worker, "READY", alias="canary")[0]
    assert worker.history == []


def test_waiting_ends_where_loading_failed(client, worker):
    """A version that failed is not waited for; the reason is told."""
    worker.history = [state(worker, "FAILED", detail="the program is for cuda, this is cpu")]

    with pytest.raises(FailedPrecondition, match="echo:1 is FAILED the program is for cuda"):
        client.wait_until_ready("echo")


def test_waiting_ends_at_the_timeout(client, worker):
    """When the time is over, the error tells the last state."""
    worker.served = state(worker, "COMPILING", detail="compiling 2 of 4")

    with pytest.raises(DeadlineExceeded, match=r"after 0\.3 s: .*COMPILING compiling 2 of 4"):
        client.wait_until_ready("echo", timeout=0.3)


def test_another_version_is_not_waited_for_in_vain(client):
    """When the wanted version does not come, the error tells what the worker serves."""
    with pytest.raises(DeadlineExceeded, match="the worker serves echo:1"):
        client.wait_until_ready("echo:2", timeout=0.3)


def test_a_model_that_is_not_served_is_not_waited_for(client):
    """A worker that was never told to serve a model is not waited for."""
    with pytest.raises(NotFound, match="does not serve 'other'"):
        client.wait_until_ready("other")


def test_a_worker_that_is_not_there_is_waited_for_until_the_timeout(connect):
    """A worker that is still starting is waited for; in the end the error says that it is not."""
    client = connect(worker="127.0.0.1:1")

    with pytest.raises(DeadlineExceeded, match=r"worker at 127\.0\.0\.1:1 does not answer"):
        client.wait_until_ready("echo", timeout=2.5)
    with pytest.raises(Unreachable):
        client.predict("echo", {"x": X})


@pytest.mark.parametrize("reference", ["lm", "lm:3", "lm@production"])
def test_models_are_loaded_and_unloaded(client, worker, reference):
    """What is asked for is what the worker is told, and its answer is given; unloading what is not
    there gives nothing.
    """
    before = worker.served
    for _ in range(2):
        (served,) = client.load(reference)
        asked = WorkerStatus((served,), "", "").matching(ModelReference.parse(reference))
        assert asked == (served,)
        assert served.state is ServedState.RESOLVING
    assert worker.served == (*before, served)

    assert client.unload(reference) == (served,)
    assert client.unload(reference) == ()
    assert worker.served == before


def test_management_may_be_forbidden(client):
    """What a worker does not allow is a PermissionDenied with its words."""
    with pytest.raises(PermissionDenied, match="not allowed for the test"):
        client.load("forbidden")
