"""Which programs a worker takes: told from the registry's metadata, before a program is opened."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import date

from servax.types import Signature
from servax_worker.errors import CannotServe


@dataclass(frozen=True)
class Host:
    """What programs are run with; `stablehlo_version` is the newest that this JAX reads."""

    platform: str
    device_count: int
    jax_version: str
    stablehlo_version: str


def choose_encoding(signature: Signature, host: Host, today: date) -> Signature:
    """Gives the signature with the encoding of its program that `host` is to run.

    That is the first that it reads, the program itself before all others; but before those that
    have expired, since a JAX that was built meanwhile may refuse them. Where it reads none, the
    program itself is left to be refused.
    """
    others = (
        replace(
            signature,
            program=encoding.program,
            calling_convention_version=encoding.calling_convention_version,
            serialization_version=encoding.serialization_version,
            stablehlo_version=encoding.stablehlo_version,
            jax_version=encoding.jax_version,
            compatibility=encoding.compatibility,
        )
        for encoding in signature.encodings
    )
    newest = _ordered(host.stablehlo_version)
    readable = [each for each in (signature, *others) if _ordered(each.stablehlo_version) <= newest]
    lasting = [
        each
        for each in readable
        if each.compatibility is None or each.compatibility.expires >= today
    ]
    return next(iter(lasting or readable), signature)


def refuse_unservable(
    signature: Signature, host: Host, allowed_custom_calls: Collection[str] = ()
) -> None:
    """Raises CannotServe, with what to do about it, where `host` cannot run the program.

    `allowed_custom_calls` are targets whose safety check the publisher may have disabled.
    """
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
    allowed = {disabled_custom_call(target) for target in allowed_custom_calls}
    if disabled := [check for check in signature.disabled_checks if check not in allowed]:
        targets = [check for check in disabled if check.startswith(disabled_custom_call(""))]
        raise CannotServe(
            f"{name} was exported with safety checks disabled ({', '.join(disabled)}): export it "
            f"without disabled_checks"
            + (", or allow them with --allow-custom-call" if targets == disabled else "")
        )


def disabled_custom_call(target: str) -> str:
    """How JAX prints that the check of a custom call was disabled."""
    return f"custom_call:{target}"


def _ordered(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", version):
        raise CannotServe(f"'{version}' is not a version of StableHLO")
    return tuple(map(int, version.split(".")))
