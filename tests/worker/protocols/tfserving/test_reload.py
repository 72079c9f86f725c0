"""A configuration replaces what a worker serves."""

import grpc
import pytest

from servax_proto.tfserving import serving_pb2, serving_pb2_grpc


@pytest.fixture(scope="module")
def published(publish, exported, symbolic):
    """Models in the registry."""
    plus = exported(lambda x: x + 1, symbolic("b")).serialize()
    times = exported(lambda x: x * 2, symbolic("b")).serialize()
    publish("turn", plus, aliases=["first"])
    publish("turn", times)
    publish("other", times)
    publish("broken", exported(lambda x: x, symbolic("b"), platforms=("cuda",)).serialize())


@pytest.fixture
def reload(published, serving):
    """Gives a worker that serves turn another configuration; then tells what it serves."""
    with serving("turn", allow_management=True, warm_up={"b": (1,)}) as running:
        running.wait_until_loaded()

        with grpc.insecure_channel(running.address) as channel:
            stub = serving_pb2_grpc.ModelServiceStub(channel)

            def reload(*models):
                config = {"model_config_list": {"config": models}}
                stub.HandleReloadConfigRequest(
                    serving_pb2.ReloadConfigRequest(config=config), timeout=60
                )
                return served()

            def served():
                references = running.server._models.references
                return sorted(map(str, references))

            reload.stub = stub
            reload.served = served
            yield reload


def refusal(call, *arguments):
    """The status of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    return caught.value.code().name, caught.value.details()


def specific(*versions):
    """A policy."""
    return {"specific": {"versions": versions}}


def test_what_is_named_is_served_and_nothing_else(reload):
    """Models come and go, by name, by number and by label; each answers when the call returns."""
    assert reload({"name": "other"}, {"name": "turn"}) == ["other", "turn"]
    assert reload({"name": "turn", "model_version_policy": specific(1, 2)}) == ["turn:1", "turn:2"]
    assert reload({"name": "turn", "version_labels": {"first": 1}}) == ["turn", "turn@first"]
    assert reload({"name": "turn", "model_version_policy": {"latest": {}}}) == ["turn"]
    assert reload() == []


REFUSED = {
    "a model that cannot be served": (
        [{"name": "broken"}],
        "FAILED_PRECONDITION",
        "broken is FAILED (signature 'serving_default' was exported for cuda",
    ),
    "a label that points elsewhere": (
        [{"name": "turn", "version_labels": {"first": 2}}],
        "FAILED_PRECONDITION",
        "turn@first is version 1, not 2: labels are the registry's aliases",
    ),
    "all versions": (
        [{"name": "turn", "model_version_policy": {"all": {}}}],
        "UNIMPLEMENTED",
        "name those to serve",
    ),
    "the newest two": (
        [{"name": "turn", "model_version_policy": {"latest": {"num_versions": 2}}}],
        "UNIMPLEMENTED",
        "the 2 newest versions of 'turn'",
    ),
    "no version": (
        [{"name": "turn", "model_version_policy": specific()}],
        "INVALID_ARGUMENT",
        "'turn' is to be served in no version",
    ),
    "version 0": (
        [{"name": "turn", "model_version_policy": specific(0)}],
        "INVALID_ARGUMENT",
        "0 is not a version",
    ),
    "no name": ([{}], "INVALID_ARGUMENT", "'' is not a model's name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(reload, case):
    """What cannot be served is told, and what was served goes on."""
    models, code, words = REFUSED[case]

    found, details = refusal(reload, *models)

    assert found == code
    assert words in details
    assert "turn" in reload.served()


def test_another_form(reload):
    """A configuration without a list of models is refused."""
    call, request = reload.stub.HandleReloadConfigRequest, serving_pb2.ReloadConfigRequest()

    assert refusal(call, request)[0] == "UNIMPLEMENTED"


def test_it_has_to_be_allowed(published, serving):
    """A worker that was not started to allow it refuses."""
    with serving("turn") as running, grpc.insecure_channel(running.address) as channel:
        stub = serving_pb2_grpc.ModelServiceStub(channel)
        found = refusal(stub.HandleReloadConfigRequest, serving_pb2.ReloadConfigRequest())

    assert found == (
        "PERMISSION_DENIED",
        "this worker was not started with --allow-management",
    )
