"""Watches a serving process: ends it when it hangs, starts it again, tells which version did it.

    supervisor          never imports JAX, never runs a program
    └─ serving process  may crash, or hang in a call that nothing can interrupt

A version during whose calls the serving process hung, or crashed, several times in a short while is
quarantined: the next process refuses to load it. A process that somebody killed says nothing about
its versions, unless that was the system for want of memory.
"""

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from servax_worker.activity import SIZE, Activity, Running

log = structlog.get_logger(__name__)

_LOOK = 0.2  # seconds between two looks at the process
_STARVED_LOOKS = 50  # after the system ended a process for want of memory, it may live for so many
_LONGEST_PAUSE = 30.0
_HEALTHY = 60.0  # seconds after which an end has nothing to do with the one before
_FAILURES = 3
_MEMORY = 600.0  # seconds for which a failure counts


@dataclass(frozen=True)
class Limits:
    """How long the serving process may be silent, in seconds.

    Its event loop turns every second. Starting, JAX included, takes its time, and so does stopping:
    a process that was told to and has not in that time is ended.
    """

    silence: float = 60.0
    start: float = 300.0
    stop: float = 60.0


_LIMITS = Limits()


class Quarantine:
    """Counts which versions the serving process ended with."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._failures: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()
        self.versions: set[str] = set()
        """The versions, as in "lm:3", that are not to be loaded any more."""

    def blame(self, versions: Sequence[str]) -> None:
        """Notes one end of the process during calls of these versions."""
        now = self._clock()
        with self._lock:
            self._failures.extend((now, version) for version in set(versions))
            while self._failures and self._failures[0][0] < now - _MEMORY:
                self._failures.popleft()
            counts = Counter(version for _, version in self._failures)
        for version, count in counts.items():
            if count >= _FAILURES and version not in self.versions:
                log.error("quarantined", version=version, failures=count)
                self.versions.add(version)

    def pardon(self, version: str) -> None:
        """Forgets what a version did."""
        with self._lock:
            self.versions.discard(version)
            self._failures = deque(each for each in self._failures if each[1] != version)


@dataclass(frozen=True)
class _End:
    """How a serving process ended, and whether a version may have done it."""

    status: int
    why: str
    blame: bool


class Supervisor:
    """Keeps one serving process running until it is told to stop, or cannot start.

    with Supervisor(command, task) as supervisor:
        status = supervisor.run()
    """

    def __init__(
        self,
        command: Sequence[str],
        task: Callable[["Supervisor"], bytes],
        limits: Limits = _LIMITS,
        quarantine: Quarantine | None = None,
    ):
        """`task` gives what the command reads from its standard input, anew at every start.

        Several supervisors may have one quarantine.
        """
        self._command = command
        self._task = task
        self._limits = limits
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 # as long as this process
        self._file.truncate(SIZE)
        self._process: subprocess.Popen[bytes] | None = None
        self._told_to_stop = 0.0
        # A signal handler may not take locks; what it writes ends a pause.
        self._woken, self._wake = os.pipe()
        self.activity = Activity(self._file)
        """What the process does, or did when it ended."""
        self.quarantine = quarantine or Quarantine()
        # The serving process ends itself when the writing end is closed, however we end.
        self._lifeline, self._life = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.activity.close()
        self._file.close()
        for descriptor in (self._life, self._lifeline, self._woken, self._wake):
            os.close(descriptor)

    @property
    def descriptors(self) -> tuple[int, int]:
        """What the serving process inherits: the activity's file, and the lifeline."""
        return self._file.fileno(), self._lifeline

    def stop(self, number: int) -> None:
        """Passes a signal on, and starts nothing any more; for the second time, ends the process.

        A signal handler may call it.
        """
        process = self._process
        if self._told_to_stop and process is not None:
            process.kill()
            return
        self._told_to_stop = time.monotonic()
        os.write(self._wake, b"\0")
        if process is not None:
            process.send_signal(number)

    def run(self) -> int:
        """Keeps the process running; gives the exit status of the last one."""
        pause = 0.0
        while True:
            select.select([self._woken], [], [], pause)
            if self._told_to_stop:
                return 0
            began = time.monotonic()
            end = self._run_once()
            if self._told_to_stop or end.status == 0 or not self.activity.last_beat:
                # What cannot start, by its settings, never will; the process has said why.
                return end.status if end.status >= 0 else 128 - end.status  # as shells tell it
            running = sorted({call.version for call in self.activity.calls()})
            if end.blame:
                self.quarantine.blame(running)
            # Whoever sends SIGKILL has no fault that a pause would mend.
            faulty = end.blame or end.status > 0
            again = faulty and time.monotonic() - began < _HEALTHY and pause
            pause = min(max(1.0, 2 * pause), _LONGEST_PAUSE) if again else 0.1
            log.error("the serving process ended", why=end.why, during=running, again_in=pause)

    def _run_once(self) -> _End:
        """Starts the process and waits for its end."""
        task = self._task(self)
        self.activity.clear()
        kills = deque([_kills_for_memory()], maxlen=_STARVED_LOOKS)
        self._process = process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            pass_fds=self.descriptors,
            # A Ctrl-C at the terminal is ours to pass on.
            process_group=0,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(task)
        if self._told_to_stop:
            process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        while True:
            try:
                status = process.wait(_LOOK)
            except subprocess.TimeoutExpired:
                kills.append(_kills_for_memory())
                if hang := self._hang(started):
                    process.kill()
                    return _End(process.wait(), hang, blame=True)
                continue
            if status != -signal.SIGKILL:
                return _End(status, _meaning(status), blame=status < 0)
            starved = _kills_for_memory() > kills[0]
            return _End(status, "SIGKILL" + " for want of memory" * starved, blame=starved)

    def _hang(self, started: float) -> str | None:
        """Why the process is to be ended; None while it does not hang."""
        now = time.monotonic()
        if self._told_to_stop:
            late = now - self._told_to_stop > self._limits.stop
            return f"it has not stopped after {self._limits.stop:.1f} s" if late else None
        late_calls = _late(self.activity.calls(), now)
        # Half of a change may have been read.
        for call in set(late_calls) & set(_late(self.activity.calls(), now)):
            return f"a call of {call.version} has not ended after {now - call.since:.1f} s"
        beat = self.activity.last_beat
        if beat and now - beat > self._limits.silence:
            return f"it has been silent for {now - beat:.1f} s"
        if not beat and now - started > self._limits.start:
            return f"it has not started after {now - started:.1f} s"
        return None


def _late(calls: Sequence[Running], now: float) -> list[Running]:
    return [call for call in calls if now > call.until > call.since > 0]


def _kills_for_memory() -> int:
    """How many processes the system has ever ended for want of memory; 0 where that is not told."""
    try:
        counters = Path("/proc/vmstat").read_text().split()
        return int(counters[counters.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0


def _meaning(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


@contextmanager
def passing_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Lets SIGTERM and SIGINT call `stop` while the block runs."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda number, _: stop(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def end_with_parent(lifeline: int) -> None:
    """Lets this process end itself, in order, when its supervisor has ended."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
