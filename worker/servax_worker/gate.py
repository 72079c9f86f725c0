"""Which programs a worker takes: told from the registry's metadata, before a program is opened."""

import re
from dataclasses import dataclass

from servax.types import Signature
from servax_worker.errors import CannotServe


@dataclass(frozen=True)
class Host:
    """What programs are run with; `stablehlo_version` is the newest that this JAX reads."""

    platform: str
    device_count: int
    jax_version: str
    stablehlo_version: str


def refuse_unservable(signature: Signature, host: Host) -> None:
    """Raises CannotServe, with what to do about it, where `host` cannot run the program."""
    name = f"signature '{signature.name}'"
    if host.platform not in signature.platforms:
        raise CannotServe(
            f"{name} was exported for {', '.join(signature.platforms)}, this worker runs on "
            f"{host.platform}: add '{host.platform}' to the platforms at export, or serve it on "
            f"another worker"
        )
    if signature.device_count > host.device_count:
        raise CannotServe(
            f"{name} runs on {signature.device_count} devices, this worker has {host.device_count}"
        )
    # A newer version than the reader's own is refused by JAX, but only when it compiles, and with
    # a message that names neither version.
    if _ordered(signature.stablehlo_version) > _ordered(host.stablehlo_version):
        raise CannotServe(
            f"{name} is written in StableHLO {signature.stablehlo_version}, this worker's JAX "
            f"{host.jax_version} reads up to {host.stablehlo_version}: upgrade the worker's JAX, "
            f"or export with an older one"
        )
    if signature.effects:
        raise CannotServe(
            f"{name} has side effects ({', '.join(signature.effects)}): export the function "
            f"without them"
        )
    if signature.disabled_checks:
        raise CannotServe(
            f"{name} was exported with safety checks disabled "
            f"({', '.join(signature.disabled_checks)}): export it without disabled_checks"
        )


def _ordered(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", version):
        raise CannotServe(f"'{version}' is not a version of StableHLO")
    return tuple(map(int, version.split(".")))
