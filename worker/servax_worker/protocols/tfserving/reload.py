"""TensorFlow Serving's configuration of a server: all that is to be served, and nothing else."""

from servax.errors import InvalidReference
from servax.reference import ModelReference
from servax.types import ServedState
from servax_proto.tfserving import serving_pb2
from servax_worker.errors import CannotServe, InvalidInput, Unsupported
from servax_worker.follower import Follower
from servax_worker.models import ServedModels

Policy = serving_pb2.FileSystemStoragePathSourceConfig.ServableVersionPolicy


async def apply(config: serving_pb2.ModelServerConfig, models: ServedModels) -> None:
    """Loads what is new, and unloads what the configuration does not name when all of it is ready.

    What began goes on although the caller leaves. Raises InvalidInput and Unsupported for a
    configuration that says nothing that can be done, and CannotServe where something of it cannot
    be served; nothing is unloaded then.
    """
    wanted = _references(config)
    for reference in wanted:
        models.load(reference)
    followers = [each for each in models.followers if each.reference in wanted]
    for follower in followers:
        await follower.loaded.wait()
    problems = [
        problem
        for follower in followers
        if (problem := _problem(follower, wanted[follower.reference]))
    ]
    if problems:
        raise CannotServe(f"{'; '.join(problems)}; nothing was unloaded")
    for reference in models.references:
        if reference not in wanted:
            await models.unload(reference)


def _references(config: serving_pb2.ModelServerConfig) -> dict[ModelReference, int | None]:
    """What is to be served, and the version that a label must point to."""
    if config.WhichOneof("config") != "model_config_list":
        raise Unsupported("config has no model_config_list, which is all that this worker takes")
    wanted: dict[ModelReference, int | None] = {}
    for model in config.model_config_list.config:
        try:
            for version in _versions(model):
                wanted[ModelReference(model.name, version)] = None
            for label, number in model.version_labels.items():
                wanted[ModelReference(model.name, alias=label)] = number
        except InvalidReference as error:
            raise InvalidInput(str(error)) from error
    return wanted


def _versions(model: serving_pb2.ModelConfig) -> list[int | None]:
    """Numbers, or None for the newest."""
    policy = model.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "specific" if policy.specific.versions:
            return list(policy.specific.versions)
        case "specific":
            raise InvalidInput(f"'{model.name}' is to be served in no version: leave it out")
        case "all":
            raise Unsupported(f"all versions of '{model.name}': name those to serve as 'specific'")
        case "latest" if policy.latest.num_versions > 1:
            raise Unsupported(
                f"the {policy.latest.num_versions} newest versions of '{model.name}': one is "
                f"served as the newest; name others as 'specific'"
            )
        case _:
            return [None]


def _problem(follower: Follower, number: int | None) -> str:
    reference, status = follower.reference, follower.current.status
    if status.state is ServedState.FAILED:
        return f"{reference} is FAILED ({status.detail})"
    if number not in (None, status.version):
        return (
            f"{reference} is version {status.version}, not {number}: labels are the registry's "
            f"aliases, move it there"
        )
    return ""
