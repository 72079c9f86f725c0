"""Runs calls of the protocol, whichever way they came, and moves arrays through shared memory."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from servax.tensors import as_array, wire_bytes
from servax_worker.errors import InvalidInput, TooLarge
from servax_worker.predictor import Answer, Predictor, Request
from servax_worker.protocols.oip.shared_memory import Place, Region, SharedMemory

# So many bytes are copied before a thread has woken up; more need not keep other callers waiting.
_AT_ONCE = 1 << 18


class SharedInput(NamedTuple):
    """An input that lies in shared memory, of one of JAX's types."""

    place: Place
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A call: `request` without what lies in shared memory, and where that lies, by name.

    `id` is what the caller calls it.
    """

    request: Request
    id: str = ""
    shared_inputs: Mapping[str, SharedInput] = field(default_factory=dict)
    shared_outputs: Mapping[str, Place] = field(default_factory=dict)


class Inference:
    """Answers calls."""

    def __init__(self, predictor: Predictor, memory: SharedMemory, max_request_bytes: int):
        self._predictor = predictor
        self._memory = memory
        self._max_request_bytes = max_request_bytes

    async def run(self, call: Call) -> Answer:
        """Answers a call; what is to lie in shared memory does so then.

        Raises what `Predictor.predict` raises, InvalidInput where an array is not in its place or
        has none there, NotServed for regions that are not registered, TooLarge and Unsupported.
        """
        if not call.shared_inputs and not call.shared_outputs:
            return await self._predictor.predict(call.request)
        find = self._memory.find
        # Found first, so that nothing is computed for nobody.
        sources = {name: find(each.place.region) for name, each in call.shared_inputs.items()}
        targets = {name: find(place.region) for name, place in call.shared_outputs.items()}
        size = sum(each.place.size for each in call.shared_inputs.values())
        if size > self._max_request_bytes:
            raise TooLarge(
                f"the inputs in shared memory have {size} bytes, a request "
                f"{self._max_request_bytes} (--max-request-bytes of the worker)"
            )
        inputs = dict(call.request.inputs)
        for name, shared in call.shared_inputs.items():
            read = partial(sources[name].read, *shared)
            inputs[name] = await _moved("input", name, shared.place.size, read)
        answer = await self._predictor.predict(replace(call.request, inputs=inputs))
        for name, place in call.shared_outputs.items():
            write = partial(_write, targets[name], place, answer.outputs[name])
            await _moved("output", name, place.size, write)
        return answer


async def _moved(kind: str, name: str, size: int, move: "partial[Any]") -> Any:
    try:
        return move() if size <= _AT_ONCE else await asyncio.to_thread(move)
    except InvalidInput as error:
        raise InvalidInput(f"{kind} '{name}': {error}") from error


def _write(region: Region, place: Place, array: NDArray[Any]) -> None:
    region.write(place, wire_bytes(as_array(array)))
