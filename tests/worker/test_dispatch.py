"""The dispatch thread runs calls in order, and none whose caller is gone."""

import asyncio
import threading
import time
import weakref

import pytest

from servax_worker.dispatch import Dispatcher
from servax_worker.errors import DeadlineExpired


@pytest.fixture
def dispatcher():
    """A dispatcher that is closed at the end."""
    dispatcher = Dispatcher()
    yield dispatcher
    dispatcher.close()


def test_one_call_after_the_other(dispatcher):
    """Calls run on one thread, in the order in which they came."""
    seen = []

    async def scenario():
        await asyncio.gather(
            *(
                dispatcher.run(lambda i=i: seen.append((i, threading.get_ident())))
                for i in range(20)
            )
        )

    asyncio.run(scenario())

    assert [index for index, _ in seen] == list(range(20))
    assert len({thread for _, thread in seen}) == 1


def test_calls_that_are_cancelled_or_late_never_run(dispatcher):
    """A call whose caller left, or whose deadline passed, while it waited is not executed."""
    ran = []
    release = threading.Event()

    async def scenario():
        first = asyncio.create_task(dispatcher.run(lambda: release.wait(10)))
        cancelled = asyncio.create_task(dispatcher.run(lambda: ran.append("cancelled")))
        late = asyncio.create_task(
            dispatcher.run(lambda: ran.append("late"), deadline=time.monotonic())
        )
        last = asyncio.create_task(dispatcher.run(lambda: ran.append("last")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(DeadlineExpired, match="while the request waited"):
            await late
        await first
        await last

    asyncio.run(scenario())

    assert ran == ["last"]


def test_what_a_cancelled_call_holds_is_let_go(dispatcher):
    """A caller that leaves takes its data along, however long the thread is still busy."""

    class Data:
        pass

    release = threading.Event()

    async def scenario():
        first = asyncio.create_task(dispatcher.run(lambda: release.wait(10)))
        data = Data()
        seen = weakref.ref(data)
        cancelled = asyncio.create_task(dispatcher.run(lambda data=data: data))
        del data
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        del cancelled
        held = seen()
        release.set()
        await first
        return held

    assert asyncio.run(scenario()) is None
