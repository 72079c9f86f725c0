"""The supervisor, over serving processes that do one thing each."""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from servax_worker import supervisor
from servax_worker.supervisor import Limits, Quarantine, Supervisor

PREAMBLE = """
import os, pickle, signal, sys, time
from servax_worker.activity import Activity
activity, lifeline, count = pickle.load(sys.stdin.buffer)
activity = Activity(activity)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
activity.beat()
print(count, os.getpid(), flush=True)
"""


@pytest.fixture
def supervise(tmp_path, capfd):
    """Supervises scripts; gives the exit status, and how often the script was started.

    The script knows how often it was started before as `count`.
    """

    def supervise(script, **limits):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        starts = []

        def task(supervisor):
            starts.append(sorted(supervisor.quarantine.versions))
            return pickle.dumps((*supervisor.descriptors, len(starts) - 1))

        with Supervisor((sys.executable, str(path)), task, Limits(**limits)) as current:
            supervise.current = current
            return current.run(), starts

    return supervise


def test_a_process_that_stops_is_left_alone(supervise):
    """A process that ends with 0 is not started again."""
    assert supervise("") == (0, [[]])


def test_a_process_that_cannot_start_is_not_tried_again(supervise):
    """A process that ends before it served gives its exit status on."""
    status, starts = supervise("activity.clear(); sys.exit(3)")

    assert (status, len(starts)) == (3, 1)


def test_a_crash_is_mended(supervise):
    """A process that is killed after it served is started again."""
    status, starts = supervise("if count == 0: os.kill(os.getpid(), signal.SIGKILL)")

    assert (status, len(starts)) == (0, 2)


def test_a_hanging_call_is_ended_and_its_version_blamed(supervise):
    """A call beyond its limit ends the process; at the third time the version is quarantined."""
    status, starts = supervise(
        """
        if count < 3:
            with activity.running("lm:3", 0.05):
                time.sleep(60)
        """
    )

    assert (status, starts) == (0, [[], [], [], ["lm:3"]])


def test_a_crash_during_a_call_is_blamed_on_its_version(supervise):
    """A process that dies in calls counts against the versions that ran, and no others."""
    _, starts = supervise(
        """
        with activity.running("good:1", 60):
            pass
        if count < 3:
            with activity.running("bad:2", 60):
                os.kill(os.getpid(), signal.SIGSEGV)
        """
    )

    assert starts[-1] == ["bad:2"]


def test_who_kills_a_process_says_nothing_of_its_versions(supervise):
    """SIGKILL from elsewhere is blamed on nobody, however often it comes."""
    _, starts = supervise(
        """
        if count < 8:
            with activity.running("good:1", 60):
                os.kill(os.getpid(), signal.SIGKILL)
        """
    )

    assert starts == [[]] * 9  # and soon: pauses would grow beyond the time that a test may take


def test_want_of_memory_is_blamed(supervise, monkeypatch):
    """SIGKILL from the system, for want of memory, is blamed on the versions that ran."""
    counts = itertools.count()
    monkeypatch.setattr(supervisor, "_kills_for_memory", lambda: next(counts))
    _, starts = supervise(
        """
        if count < 3:
            with activity.running("large:1", 60):
                os.kill(os.getpid(), signal.SIGKILL)
        """
    )

    assert starts[-1] == ["large:1"]


def test_a_process_that_does_not_stop_is_ended(supervise):
    """Told to stop, a process that cannot is ended after a while; told twice, at once."""
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    timer = threading.Timer(1.0, lambda: supervise.current.stop(signal.SIGTERM))
    timer.start()
    assert supervise(stubborn, stop=0.3) == (128 + signal.SIGKILL, [[]])
    timer.join()

    def twice():
        supervise.current.stop(signal.SIGTERM)
        supervise.current.stop(signal.SIGINT)

    timer = threading.Timer(1.0, twice)
    timer.start()
    assert supervise(stubborn) == (128 + signal.SIGKILL, [[]])
    timer.join()


def test_a_stop_ends_the_pause(supervise):
    """Told to stop while it waits to start the process again, the supervisor ends with 0."""
    timer = threading.Timer(1.0, lambda: supervise.current.stop(signal.SIGTERM))
    timer.start()

    status, starts = supervise("os._exit(1)")
    timer.join()

    assert status == 0
    assert len(starts) <= 3


def test_silence_is_a_hang(supervise):
    """A process whose event loop does not turn any more is ended and started again."""
    status, starts = supervise("if count == 0: time.sleep(60)", silence=0.3)

    assert (status, len(starts)) == (0, 2)


def test_a_process_that_does_not_get_to_serve_is_ended(supervise):
    """A start that takes too long ends, and is not tried again."""
    status, starts = supervise("activity.clear(); time.sleep(60)", start=0.3)

    assert (status, len(starts)) == (128 + signal.SIGKILL, 1)


def test_signals_are_passed_on(supervise):
    """Told to stop, the supervisor tells the process, waits for it and starts nothing any more."""
    timer = threading.Timer(1.0, lambda: supervise.current.stop(signal.SIGTERM))
    timer.start()

    status, starts = supervise("time.sleep(60)")
    timer.join()

    assert (status, len(starts)) == (0, 1)


def test_the_process_ends_with_its_supervisor(tmp_path):
    """A serving process whose supervisor was killed ends itself, in order."""
    child = tmp_path / "child.py"
    child.write_text(
        PREAMBLE
        + textwrap.dedent(
            """
            from servax_worker.supervisor import end_with_parent
            try:
                end_with_parent(lifeline)
                time.sleep(60)
            finally:
                print("in order", flush=True)
            """
        )
    )
    parent = tmp_path / "parent.py"
    parent.write_text(
        textwrap.dedent(
            f"""
            import pickle, sys
            from servax_worker.supervisor import Supervisor
            with Supervisor(
                (sys.executable, {str(child)!r}), lambda s: pickle.dumps((*s.descriptors, 0))
            ) as supervisor:
                supervisor.run()
            """
        )
    )
    with subprocess.Popen([sys.executable, parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()

        assert process.stdout.read() == "in order\n"  # and its end, which is the child's


def test_failures_are_forgotten_after_a_while():
    """Failures that lie far apart do not add up."""
    now = 0.0
    quarantine = Quarantine(clock=lambda: now)
    for _ in range(5):
        quarantine.blame(["lm:3", "lm:3"])
        now += 400

    assert quarantine.versions == set()
    quarantine.blame(["lm:3"])
    quarantine.blame(["lm:3", "other:1"])
    assert quarantine.versions == {"lm:3"}


def test_nothing_is_left_open():
    """A supervisor's descriptors are its own: no other process inherits them by chance."""
    with Supervisor(("true",), lambda _: b"") as supervisor:
        assert not any(os.get_inheritable(descriptor) for descriptor in supervisor.descriptors)
        assert supervisor.run() == 0
