"""What a process tells of itself in shared memory."""

import tempfile
import threading
import time
from contextlib import ExitStack, closing

import pytest

from servax_worker.activity import SIZE, Activity, Watch


@pytest.fixture
def share():
    """Maps the same file as often as it is called."""
    with tempfile.TemporaryFile() as file, ExitStack() as stack:
        file.truncate(SIZE)
        yield lambda: stack.enter_context(closing(Activity(file)))


@pytest.fixture
def activity(share):
    """The memory as its only process sees it."""
    return share()


def test_calls_are_seen_while_they_run(share):
    """Who maps the same file sees each call of a version from its beginning to its end."""
    writer, reader = share(), share()
    before = time.monotonic()

    with writer.running("lm:3", 5.0), writer.running("mnist:12", 60.0):
        calls = sorted(reader.calls(), key=lambda call: call.version)
        assert [call.version for call in calls] == ["lm:3", "mnist:12"]
        assert before <= calls[0].since <= time.monotonic()
        assert calls[0].until == pytest.approx(calls[0].since + 5)

    assert reader.calls() == []


def test_a_call_that_raises_has_ended(activity):
    """An exception ends a call like any other end."""
    with pytest.raises(ValueError, match="x"), activity.running("lm:3", 1.0):
        raise ValueError("x")

    assert activity.calls() == []


def test_ports_outlive_a_process(activity):
    """Clearing forgets calls and signs of life, not where to serve again."""
    activity.tell_ports(8500, 8501)
    activity.beat()
    assert activity.last_beat == pytest.approx(time.monotonic(), abs=60)

    with activity.running("lm:3", 1.0):
        activity.clear()

    assert (activity.ports, activity.last_beat, activity.calls()) == ((8500, 8501), 0.0, [])


def test_memos_outlive_a_process(share):
    """The last memo is what is read, whatever came of the process that left it."""
    writer, reader = share(), share()
    assert reader.memo == b""

    for memo in (b"long " * 1000, b"short", b""):
        writer.leave_memo(memo)
        writer.clear()
        assert reader.memo == memo


def test_a_memo_that_is_too_long_is_refused(activity):
    """What there is no room for is refused, and the memo before stays."""
    activity.leave_memo(b"before")

    with pytest.raises(ValueError, match="there is room for 65532"):
        activity.leave_memo(bytes(1 << 16))
    assert activity.memo == b"before"


def test_more_calls_than_can_be_told_run_all_the_same(activity):
    """Beyond the slots there are, calls run unseen, and slots are given back."""
    barrier = threading.Barrier(101)

    def call():
        with activity.running("m" * 300, 1.0):
            barrier.wait()
            barrier.wait()

    threads = [threading.Thread(target=call) for _ in range(100)]
    for thread in threads:
        thread.start()
    barrier.wait()
    assert {call.version for call in activity.calls()} == {"m" * 255}
    barrier.wait()
    for thread in threads:
        thread.join()

    assert activity.calls() == []
    with activity.running("lm:3", 1.0):
        assert len(activity.calls()) == 1


def test_nobody_need_watch(activity):
    """Without anybody to tell, calls and compilations just run; with, each has its own limit."""
    with Watch().calling("a"), Watch().compiling("a"):
        pass
    watch = Watch(activity, call_timeout=1.0, compile_timeout=100.0)
    with watch.calling("a"), watch.compiling("b"):
        assert watch.activity is not None
        limits = {call.version: call.until - call.since for call in watch.activity.calls()}

    assert limits == {"a": pytest.approx(1), "b": pytest.approx(100)}
