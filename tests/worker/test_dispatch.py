"""The device's turns: in order, as many at once as their shares allow, none for who is gone."""

import asyncio
import threading
import time
import weakref

import pytest

from servax_worker.dispatch import Dispatcher
from servax_worker.errors import NotReady


@pytest.fixture
def dispatcher():
    """A dispatcher that is closed at the end."""
    dispatcher = Dispatcher()
    yield dispatcher
    dispatcher.close()


def test_one_call_after_the_other(dispatcher):
    """Calls that take the whole device never overlap, and run in the order in which they came."""
    seen = []

    def call(index):
        seen.append(index)
        time.sleep(0.001)
        assert seen[-1] == index

    async def scenario():
        await asyncio.gather(*(dispatcher.run(lambda i=i: call(i)) for i in range(20)))

    asyncio.run(scenario())

    assert seen == list(range(20))


def test_shares_run_side_by_side(dispatcher):
    """Two halves of the device run at once, and a whole waits for both, also with more behind."""
    both = threading.Barrier(3)
    ran = []

    def half():
        both.wait(10)
        ran.append("half")

    async def scenario():
        first = [asyncio.create_task(dispatcher.run(half, 0.5)) for _ in range(2)]
        whole = asyncio.create_task(dispatcher.run(lambda: ran.append("whole")))
        last = asyncio.create_task(dispatcher.run(lambda: ran.append("last"), 0.5))
        await asyncio.to_thread(both.wait, 10)
        await asyncio.gather(*first, whole, last)

    asyncio.run(scenario())

    assert ran == ["half", "half", "whole", "last"]


class Noted:
    """A source of one job, which notes on which thread it runs."""

    share = 1.0

    def __init__(self, brief, done):
        self.brief = brief
        self._done = done

    def take(self):
        """What is to run."""
        return self

    def run(self):
        """Runs."""
        self.thread = threading.get_ident()

    def settle(self):
        """Ends."""
        self._done.set()


@pytest.mark.parametrize("brief", [True, False])
def test_brief_jobs_run_on_the_event_loop(dispatcher, brief):
    """A brief job wakes no other thread, any other has one; both give their turn back."""

    async def scenario():
        for _ in range(2):
            done = asyncio.Event()
            job = Noted(brief, done)
            dispatcher.ask(job)
            await done.wait()
            assert (job.thread == threading.get_ident()) is brief

    asyncio.run(scenario())


def test_an_error_is_its_callers_alone(dispatcher):
    """What a call raises reaches its caller, and the next call runs."""

    async def scenario():
        with pytest.raises(ZeroDivisionError):
            await dispatcher.run(lambda: 1 / 0)
        return await dispatcher.run(lambda: 7)

    assert asyncio.run(scenario()) == 7


def test_closing_refuses_what_has_not_begun(dispatcher):
    """A closed dispatcher ends what runs, and refuses what waits and what comes."""
    release = threading.Event()

    async def scenario():
        running = asyncio.create_task(dispatcher.run(lambda: release.wait(10)))
        waiting = asyncio.create_task(dispatcher.run(lambda: pytest.fail("ran")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        dispatcher.close()
        release.set()
        results = await asyncio.gather(running, waiting, return_exceptions=True)
        with pytest.raises(NotReady, match="shutting down"):
            await dispatcher.run(lambda: None)
        return results

    ran, refused = asyncio.run(scenario())
    assert ran is True
    assert isinstance(refused, NotReady)


def test_what_a_cancelled_call_holds_is_let_go(dispatcher):
    """A caller that leaves takes its data along, however long the device is still busy."""

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
