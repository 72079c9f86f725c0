"""What a process gives up, for good, before it touches a program."""

import contextlib
import os
import resource
import sys

_CPU_GRACE_SECONDS = 1


def confine(*, memory: int, cpu_seconds: int, open_files: int) -> None:
    """Limits this process: `memory` in bytes of address space; no files written, no core, no net.

    To be called before there is a second thread: those cannot leave the network.
    """
    _limit(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + _CPU_GRACE_SECONDS)
    _limit(resource.RLIMIT_AS, memory)
    _limit(resource.RLIMIT_NOFILE, open_files)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux" and sys.version_info >= (3, 12):
        # A namespace without network. Many containers forbid it: worth having, not worth refusing
        # to work without.
        with contextlib.suppress(OSError):
            os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    _, ceiling = resource.getrlimit(kind)
    wanted = [soft, soft if hard is None else hard]
    if ceiling != resource.RLIM_INFINITY:
        wanted = [min(value, ceiling) for value in wanted]
    # macOS refuses RLIMIT_AS; there the time limits alone hold.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (wanted[0], wanted[1]))
