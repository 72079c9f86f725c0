"""Calls every method of a registry with messages that no client would make.

    python -m tests.faults.hostile_calls --calls 10000 --seed 1

Each field of each message is drawn at random: often something that exists, often nonsense - names
that are paths, numbers at the edge of their type, forged page tokens, times that no calendar has.
Nothing may be answered INTERNAL or UNKNOWN, or not at all; no error may be logged; and in the end
`check` must find nothing wrong. A failure prints the seed and exits with 1.
"""

import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import grpc
import jax
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from jax import export
from rich.console import Console
from rich.progress import track
from rich.table import Table

from examples.services import clean_environment, service
from servax import Client
from servax_proto.v1 import registry_pb2, registry_pb2_grpc

TIMEOUT = 20.0
FAULTS = ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE")

TEXTS = (
    *("", "m0", "x", "A" * 64, "a" * 10_000, "../x", "a/b", "a\0b", "\u202eabc", "\x1b[31m", "é"),
    *("sha256:" + "0" * 64, "sha256:" + "F" * 64, "sha256:zz", "%", "_", "' OR 1=1 --", "m0:1"),
    *(
        "m0@prod",
        "serving_default",
        "cpu",
        "2026-01-01",
        "2026-13-45",
        "9999-12-31",
        "-",
        ".",
        "..",
    ),
)
NUMBERS = (
    *(0, 1, 2, -1, 1000, 1001, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)),
    *(253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801),  # ends of the calendar
)
FLOATS = (0.0, 0.1, -1.0, float("nan"), float("inf"), 1e300)

# What may well exist, by the field's name.
LIKELY: dict[str, tuple[Any, ...]] = {
    "model": ("m0", "m1", "m2", "n1"),
    "destination": ("m1", "n2"),
    "alias": ("prod", "x"),
    "aliases": ("prod", "x", "y"),
    "signature": ("serving_default", "", "other"),
    "platform": ("cpu", "tpu", ""),
    "expiring_before": ("2026-01-01", "2099-01-01", ""),
    "version": (0, 1, 2, 3),
    "expected_version": (0, 1, 2),
    "page_size": (0, 1, 2),
    "since": (0, 1, 5),
    "seconds": (0, 1_700_000_000),
    "request_id": ("", "11111111-1111-4111-8111-111111111111"),
}


class Hostile:
    """Draws messages."""

    def __init__(self, seed: int, digests: list[str]) -> None:
        self._random = random.Random(seed)
        self._digests = digests
        self.tokens = [""]

    def method(self, methods: list[MethodDescriptor]) -> MethodDescriptor:
        """One of them."""
        return self._random.choice(methods)

    def messages(self, method: MethodDescriptor) -> list[Any]:
        """The requests of one call; an upload is often one that could succeed."""
        kind = GetMessageClass(method.input_type)
        count = self._random.choice((0, 1, 1, 2, 3)) if method.client_streaming else 1
        found: list[Any] = [self._filled(kind()) for _ in range(count)]
        if found and method.client_streaming and self._random.random() < 0.5:
            data = self._random.randbytes(self._random.choice((0, 10, 1000)))
            found[0].blob.digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            found[0].blob.size = self._random.choice((len(data), len(data) + 1, 0))
            found[0].data, found[0].offset = data, self._random.choice((0, 0, 5))
        return found

    def _filled(self, message: Message) -> Message:
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < 0.35:
                continue
            value = getattr(message, field.name)
            if field.message_type and field.message_type.GetOptions().map_entry:
                for number in range(self._random.choice((0, 0, 1, 70))):
                    value[f"{self._text()}{number or ''}"] = self._text()
            elif field.is_repeated:
                few = self._random.random() < 0.97
                for _ in range(self._random.choice((0, 1, 1, 2)) if few else 1001):
                    if field.message_type:
                        self._filled(value.add())
                    else:
                        value.append(self._value(field))
            elif field.message_type:
                self._filled(value)
            else:
                setattr(message, field.name, self._value(field))
        return message

    def _value(self, field: Any) -> Any:
        draw = self._random.choice
        if self._random.random() < 0.85:
            if field.name in ("digest", "digests", "weights"):
                return draw(self._digests)
            if field.name == "page_token":
                return draw(self.tokens)
            if field.name in LIKELY:
                return draw(LIKELY[field.name])
        match field.type:
            case FieldDescriptor.TYPE_STRING:
                return self._text()
            case FieldDescriptor.TYPE_BYTES:
                return draw((b"", b"x", b"\xff" * 100, bytes(1 << 20), bytes((1 << 20) + 1)))
            case FieldDescriptor.TYPE_BOOL:
                return draw((True, False))
            case FieldDescriptor.TYPE_DOUBLE:
                return draw(FLOATS)
            case FieldDescriptor.TYPE_INT64:
                return draw(NUMBERS)
        return draw([number for number in NUMBERS if -(2**31) <= number < 2**31])

    def _text(self) -> str:
        draw = self._random.choice
        if self._random.random() < 0.2:
            return draw(self._digests)
        token = draw(self.tokens)
        if token and self._random.random() < 0.2:
            place = self._random.randrange(len(token))
            return token[:place] + draw("AZ09_-=") + token[place + 1 :]
        return draw(TEXTS)


def call(stub: Any, method: MethodDescriptor, messages: list[Any]) -> Any:
    """Perform a call; gives its answer, of a stream the last."""
    perform = getattr(stub, method.name)
    if method.client_streaming:
        return perform(iter(messages), timeout=TIMEOUT)
    answer = perform(messages[0], timeout=TIMEOUT)
    return list(answer)[-1:] if method.server_streaming else answer


def publish(client: Client) -> list[str]:
    """Publish three models; gives the digests of what is stored."""
    functions: tuple[Callable[[Any], Any], ...] = (lambda x: x + 1, lambda x: x * 2)
    spec = jax.ShapeDtypeStruct((2,), "float32")
    programs = [bytes(export.export(jax.jit(each))(spec).serialize()) for each in functions]
    for number in range(3):
        client.push(f"m{number}", programs[0], aliases=["prod"], labels={"key": "50 %"})
    return [client.push("m0", program).signatures[0].program.digest for program in programs]


def run(address: str, calls: int, seed: int) -> Counter[tuple[str, str]]:
    """Call so often; gives how often each method ended with each status."""
    ends: Counter[tuple[str, str]] = Counter()
    methods = list(registry_pb2.DESCRIPTOR.services_by_name["Registry"].methods)
    with Client(registry=address) as client:
        hostile = Hostile(seed, publish(client))
    with grpc.insecure_channel(address) as channel:
        stub = registry_pb2_grpc.RegistryStub(channel)
        for _ in track(range(calls), "calls", console=Console(stderr=True)):
            method = hostile.method(methods)
            messages = hostile.messages(method)
            try:
                answer = call(stub, method, messages)
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
                ends[method.name, code.name] += 1
                assert code.name not in FAULTS, f"{method.name}: {code.name} {details} {messages}"
            else:
                ends[method.name, "OK"] += 1
                if token := getattr(answer, "next_page_token", ""):
                    hostile.tokens.append(token)
    return ends


@click.command()
@click.option("--calls", default=2000, show_default=True, help="How many to make.")
@click.option("--seed", type=int, help="Repeats a run.")
def main(calls: int, seed: int | None) -> None:
    """Call a registry as no client would, and check that it minds nothing."""
    console = Console()
    seed = random.randrange(1 << 30) if seed is None else seed
    console.print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = f"sqlite:///{folder / 'registry.db'}"
        options = ["serve", "--db", database, "--listen", "127.0.0.1:0", "--no-trials"]
        with service("servax_registry", options, folder, clean_environment()) as registry:
            ends = run(registry.address, calls, seed)
            registry.check()
        lines = (folder / "servax_registry.log").read_text().splitlines()
        errors = [line for line in lines if json.loads(line)["level"] in ("error", "critical")]
        assert not errors, errors[0]
        check = [sys.executable, "-m", "servax_registry", "check", "--db", database]
        subprocess.run(check, check=True)
    table = Table("method", "status", "calls", title=f"{calls:,} hostile calls")
    for (method, status), count in sorted(ends.items()):
        table.add_row(method, status, f"{count:,}")
    console.print(table)


if __name__ == "__main__":
    main()
