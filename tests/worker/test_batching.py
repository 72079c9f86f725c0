"""Calls are joined, cut and given back whatever happens to their neighbours; no JAX, no gRPC."""

import asyncio
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from servax_worker.batch import Bucket
from servax_worker.batching import Batcher
from servax_worker.errors import DeadlineExpired, ExecutionFailed, NotReady, Overloaded

BUCKETS = (Bucket(1, 1.0), Bucket(2, 1.1), Bucket(4, 1.2), Bucket(8, 1.3))


class Device:
    """Gives a turn when the test says so; a source that asks twice without a turn is a fault."""

    def __init__(self):
        self.asking = []
        self.closed = False

    def ask(self, source):
        """Stands in for the dispatcher's."""
        if self.closed:
            source.close()
            return
        assert source not in self.asking
        self.asking.append(source)

    def give(self):
        """The job of the next source that has one."""
        while self.asking:
            if (job := self.asking.pop(0).take()) is not None:
                return job
        return None

    def close(self):
        """Stands in for the dispatcher's."""
        self.closed = True
        while self.asking:
            self.asking.pop(0).close()


class World:
    """A batcher on a loop and a clock of the test's own."""

    def __init__(self, buckets=BUCKETS, ready=None, **options):
        self.loop = asyncio.new_event_loop()
        self.device = Device()
        self.now = 0.0
        self.sizes = []  # of the arrays that ran
        self.reports = []
        self.poison = set()
        self.buckets = buckets
        self.batcher = Batcher(
            self.device,
            (lambda key, rows: self.run) if ready is None else ready,
            report=self.reports.append,
            clock=lambda: self.now,
            **options,
        )

    def run(self, inputs):
        """Doubles; fails where a poisoned value is among the rows."""
        x = inputs["x"]
        self.sizes.append(len(x))
        if self.poison & set(x.tolist()):
            raise ExecutionFailed("poisoned")
        return {"y": x * 2}

    def call(self, *values, key=None, deadline=None):
        """Sends rows of these values."""
        inputs = {"x": np.array(values)}
        fitting = next((rows for rows, *_ in self.buckets if rows >= len(values)), None)
        runner = fitting or self.buckets[-1].rows, self.run
        task = self.loop.create_task(
            self.batcher.call(key, self.buckets, inputs, len(values), runner, deadline)
        )
        self.step()
        return task

    def step(self):
        """Lets everything happen that can."""
        for _ in range(12):
            self.loop.run_until_complete(asyncio.sleep(0))

    def turn(self):
        """Gives one turn, and whether there was anything to run."""
        job = self.device.give()
        if job is None:
            return False
        job.run()
        job.settle()
        self.step()
        return True

    def work(self):
        """Gives turns until nothing waits."""
        while self.turn():
            pass

    def close(self):
        """Ends the loop."""
        self.loop.close()


@pytest.fixture
def world():
    """Makes worlds, which are closed at the end."""
    worlds = []

    def world(*args, **options):
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield world
    for each in worlds:
        each.close()


def answer(task):
    """What a call gave, as a list."""
    return task.result().outputs["y"].tolist()


def test_it_needs_neither_grpc_nor_jax():
    """The batcher can be imported, and so tested, where neither is installed."""
    code = (
        "import sys; sys.modules.update(jax=None, jaxlib=None, grpc=None, google=None)\n"
        "import servax_worker.batching"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_came_while_the_device_was_busy_runs_together(world):
    """A lone call starts at once; those that come meanwhile are one batch, padded to a bucket."""
    w = world()
    first = w.call(1)
    job = w.device.give()
    others = [w.call(2), w.call(3, 4), w.call(5, 6)]

    job.run()
    job.settle()
    w.work()

    assert [answer(task) for task in (first, *others)] == [[2], [4], [6, 8], [10, 12]]
    assert w.sizes == [1, 8]
    assert [(ran.rows, ran.padding) for ran in w.reports] == [(1, 0), (5, 3)]


def test_a_batch_is_brief_where_its_bucket_is(world):
    """A batch runs on the event loop where so many rows take no longer than that is worth."""
    w = world((Bucket(1, 1.0, brief=True), Bucket(2, 1.5)))
    w.call(1)
    small = w.device.give()
    w.call(2, 3)
    large = w.device.give()

    assert (small.brief, large.brief) == (True, False)


def test_one_bucket_more_is_taken_only_where_it_pays(world):
    """Five rows where eight take twice as long as four run as four and one."""
    w = world((Bucket(1, 1.0), Bucket(4, 2.0), Bucket(8, 4.0)))
    task = w.call(1, 2, 3, 4, 5)

    w.work()

    assert answer(task) == [2, 4, 6, 8, 10]
    assert w.sizes == [4, 1]


def test_a_fixed_batch_serves_any_number_of_rows(world):
    """Where only batches of four can run, one row is padded and seven are cut."""
    w = world((Bucket(4, 1.0),))
    one, seven = w.call(1), w.call(*range(7))

    w.work()

    assert answer(one) == [2]
    assert answer(seven) == [0, 2, 4, 6, 8, 10, 12]
    assert w.sizes == [4, 4]


def test_a_large_call_takes_turns_with_others(world):
    """A call of many batches does not keep those that come after it waiting for all of them."""
    w = world()
    large, small = w.call(*range(40)), w.call(100)

    w.turn()
    w.turn()

    assert answer(small) == [200]
    w.work()
    assert answer(large) == [2 * value for value in range(40)]


def test_only_equal_keys_are_joined_and_they_take_turns(world):
    """Calls of other sizes run in batches of their own, in turn."""
    w = world()
    tasks = [w.call(value, key=value % 2) for value in range(6)]

    w.turn()
    assert [task.done() for task in tasks] == [True, False, True, False, True, False]
    w.work()

    assert [answer(task) for task in tasks] == [[2 * value] for value in range(6)]


def test_without_joining_every_batch_is_one_callers(world):
    """Where the operator turned joining off, calls are padded and cut, but never joined."""
    w = world(joins=False)
    tasks = [w.call(1), w.call(2, 3, 4)]

    w.work()

    assert [answer(task) for task in tasks] == [[2], [4, 6, 8]]
    assert w.sizes == [1, 4]


def test_only_what_is_at_hand_runs(world):
    """Where a bucket is not compiled, the runner that a call brought along does."""
    w = world(ready=lambda key, rows: None)
    tasks = [w.call(1, 2), w.call(3), w.call(4)]

    w.work()

    assert [answer(task) for task in tasks] == [[2, 4], [6], [8]]
    assert set(w.sizes) <= {1, 2}


def test_a_failing_call_fails_alone(world):
    """The neighbours of a call that makes its batch fail get their answers."""
    w = world()
    w.poison = {3}
    tasks = [w.call(value) for value in range(5)]

    w.work()

    with pytest.raises(ExecutionFailed, match="poisoned"):
        tasks[3].result()
    assert [answer(task) for task in tasks if task is not tasks[3]] == [[0], [2], [4], [8]]
    assert w.sizes == [8, 1, 1, 1, 1, 1]


def test_a_lone_failure_is_not_repeated(world):
    """What failed alone is told at once, and the rest of a large call is not executed."""
    w = world()
    w.poison = {1}
    task = w.call(*range(30))

    w.work()

    with pytest.raises(ExecutionFailed):
        task.result()
    assert w.sizes == [8]
    assert w.batcher.waiting == 0


def test_who_is_gone_or_late_never_reaches_the_device(world):
    """A cancelled call and one whose deadline passed are dropped; the others run without them."""
    w = world()
    cancelled, late, stays = w.call(1), w.call(2, deadline=5.0), w.call(3, deadline=50.0)
    cancelled.cancel()
    w.step()
    assert w.batcher.waiting == 2
    w.now = 10.0

    w.work()

    with pytest.raises(DeadlineExpired, match=r"waited 10\.000 s"):
        late.result()
    assert answer(stays) == [6]
    assert w.sizes == [1]


def test_leaving_while_the_batch_runs_hurts_nobody(world):
    """A caller that leaves from a running batch costs its neighbours nothing."""
    w = world()
    leaves, stays = w.call(1), w.call(2)
    job = w.device.give()
    leaves.cancel()
    w.step()

    job.run()
    job.settle()
    w.step()

    assert leaves.cancelled()
    assert answer(stays) == [4]


def test_a_full_queue_refuses_at_once_and_says_how_long(world):
    """One call too many is refused with the time that those before it take."""
    w = world(max_queue=2, pace=3.0)
    waiting = [w.call(1), w.call(2)]

    refused = w.call(3)

    with pytest.raises(Overloaded, match=r"2 requests wait.*--max-queue") as error:
        refused.result()
    assert error.value.retry_after == 6.0
    w.work()
    assert [answer(task) for task in waiting] == [[2], [4]]


def test_a_call_that_would_be_late_is_refused_at_once(world):
    """What cannot be done before its deadline is refused when it comes, unless nothing waits."""
    w = world(pace=3.0)
    alone = w.call(1, deadline=1.0)

    refused, accepted = w.call(2, deadline=7.4), w.call(3, deadline=7.6)

    with pytest.raises(Overloaded, match="longer than its deadline"):
        refused.result()
    w.work()
    assert (answer(alone), answer(accepted)) == ([2], [6])


def test_the_pace_is_measured_while_calls_wait(world):
    """What a refused caller is told follows how fast the queue really moves."""
    w = world(max_queue=64, pace=100.0)
    tasks = [w.call(*range(8)) for _ in range(64)]
    while len(w.reports) < 60:
        w.now += 16.0
        w.turn()
    waits = [w.call(1) for _ in range(61)][-1]

    with pytest.raises(Overloaded) as error:
        waits.result()
    assert error.value.retry_after == pytest.approx((4 * 8 + 60) * 2.0, rel=0.1)
    w.work()
    assert all(len(answer(task)) == 8 for task in tasks)


def test_a_delay_waits_for_company_but_not_for_more_than_fits(world):
    """With a delay, a lone call waits for others until they fill a batch or the delay is over."""
    w = world(delay=0.02)
    lone = w.call(1)
    assert not w.device.asking

    filling = w.call(*range(7))
    assert w.device.asking
    w.work()
    assert w.sizes == [8]

    last = w.call(5)
    assert not w.device.asking
    while not w.device.asking:
        w.loop.run_until_complete(asyncio.sleep(0.005))
    w.work()
    assert [len(answer(task)) for task in (lone, filling, last)] == [1, 7, 1]


def test_closing_answers_everybody(world):
    """Who waits, runs, or comes when the device is closed is answered; what runs ends."""
    w = world()
    running = w.call(1)
    job = w.device.give()
    lost = w.call(2), w.call(3)
    never_run = w.device.give()
    waiting = w.call(4)

    w.device.close()
    job.run()
    job.settle()
    never_run.settle()
    late = w.call(5)
    w.step()

    assert answer(running) == [2]
    for task in (*lost, waiting, late):
        with pytest.raises(NotReady, match="shutting down"):
            task.result()
    assert w.batcher.waiting == 0


def test_what_a_cancelled_call_holds_is_let_go(world):
    """A caller that leaves the queue takes its arrays along, however long the device is busy."""
    w = world()
    w.call(1)
    w.device.give()
    inputs = {"x": np.array([2])}
    seen = weakref.ref(inputs["x"])
    task = w.loop.create_task(w.batcher.call(None, BUCKETS, inputs, 1, (1, w.run)))
    del inputs
    w.step()

    task.cancel()
    w.step()
    del task
    gc.collect()

    assert seen() is None


class Interleavings(RuleBasedStateMachine):
    """Any order of joins, cancellations, deadlines, failures, turns and closing."""

    def __init__(self):
        super().__init__()
        self.world = World(max_queue=12, pace=0.5)
        self.sent = []
        self.jobs = []
        self.count = 0

    @rule(
        rows=st.integers(1, 20),
        key=st.integers(0, 2),
        patience=st.none() | st.integers(0, 20),
        poisoned=st.booleans(),
    )
    def join(self, rows, key, patience, poisoned):
        """A call comes."""
        values = list(range(self.count, self.count + rows))
        self.count += rows
        if poisoned:
            self.world.poison.add(values[rows // 2])
        deadline = None if patience is None else self.world.now + patience
        task = self.world.call(*values, key=key, deadline=deadline)
        self.sent.append((task, values, poisoned))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def leave(self, data):
        """A caller leaves."""
        task, _, _ = data.draw(st.sampled_from(self.sent))
        task.cancel()
        self.world.step()

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds):
        """Time passes."""
        self.world.now += seconds

    @precondition(lambda self: len(self.jobs) < 2)
    @rule()
    def begin(self):
        """The device takes a batch; two may run at once."""
        if (job := self.world.device.give()) is not None:
            self.jobs.append(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def end(self, data):
        """A batch ends, in any order."""
        job = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        job.run()
        job.settle()
        self.world.step()

    @precondition(lambda self: len(self.sent) > 8)
    @rule()
    def close(self):
        """The device closes; one of the batches that it took never runs."""
        self.world.device.close()
        if self.jobs:
            self.jobs.pop().settle()
        self.world.step()

    @invariant()
    def waiting_is_counted(self):
        """The depth of the queue is never negative, and nobody is forgotten who waits."""
        batcher = self.world.batcher
        assert 0 <= batcher.waiting <= 12
        assert not batcher.waiting or self.world.device.asking or self.world.device.closed

    def teardown(self):
        """At the end everybody was answered, once, with what is his."""
        for job in self.jobs:
            job.run()
            job.settle()
        self.world.work()
        self.world.step()
        try:
            assert self.world.batcher.waiting == 0
            for task, values, poisoned in self.sent:
                assert task.done()
                if task.cancelled():
                    continue
                error = task.exception()
                if error is None:
                    assert answer(task) == [2 * value for value in values]
                    assert not poisoned
                else:
                    assert isinstance(error, (DeadlineExpired, NotReady, Overloaded)) or poisoned
        finally:
            self.world.close()


TestInterleavings = Interleavings.TestCase
TestInterleavings.__doc__ = "Any interleaving settles every call exactly once, with its own rows."
TestInterleavings.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
