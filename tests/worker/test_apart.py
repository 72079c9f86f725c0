"""Loading apart: what comes of loader processes that end in every way there is."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from servax.types import Blob, ServedState, Signature, Version
from servax_worker import apart
from servax_worker.errors import CannotServe
from servax_worker.proofs import Proofs
from servax_worker.settings import Settings

PREAMBLE = """
import json, os, pickle, signal, sys, time
task = pickle.load(sys.stdin.buffer)
def tell(**event):
    print(json.dumps(event), flush=True)
tell(state="COMPILING", detail="compiling 1 of 2")
"""


def version(number=3, **changes):
    """A version of "lm" with one signature."""
    signature = Signature(
        *("serving_default", Blob("sha256:1", 1), "f", (), (), (), ("cpu",), 1, 10, 3, "1.0", ""),
        **changes,
    )
    return Version("lm", number, (signature,), (), "", {}, datetime.now(UTC))


class Inner:
    """Stands for the assembler of the serving process."""

    def __init__(self):
        self.assembled = []

    async def assemble(self, version, files, report, *, proved):
        """Notes what is assembled."""
        assert proved
        self.assembled.append(version.number)
        return version

    def choose_encodings(self, version):
        """Stands in for the assembler's."""
        return version

    async def release(self):
        """Gives nothing back."""


@pytest.fixture
def inner():
    """The assembler behind the loader process."""
    return Inner()


@pytest.fixture
def load(inner, tmp_path, monkeypatch):
    """Loads versions one after the other by a script; gives what was reported."""
    monkeypatch.setattr(apart, "_PAUSES", (0.0, 0.0))

    def load(script, *versions, **changes):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        monkeypatch.setattr(apart, "_COMMAND", (sys.executable, str(path)))
        settings = Settings("", (), tmp_path, load_apart=True, **changes)
        reports = []

        async def run():
            proofs = Proofs(tmp_path / "proofs", ("here",))
            assembler = apart.ApartAssembler(inner, settings, proofs)
            for each in versions or (version(),):
                await assembler.assemble(each, {}, lambda *report: reports.append(report))

        asyncio.run(run())
        return reports

    return load


def test_the_serving_process_follows(load, inner):
    """What a loader process proved is assembled, and its progress was told."""
    reports = load("""tell(state="VERIFYING", detail="running 1 of 1"); tell(done="")""")

    assert inner.assembled == [3]
    assert (ServedState.COMPILING, "compiling 1 of 2") in reports
    assert reports[-1] == (ServedState.VERIFYING, "running 1 of 1")


def test_what_was_proved_is_not_proved_again(load, inner):
    """The same programs, weights and declarations, under any number, need no other process; what
    differs does.
    """
    load('tell(done="")')

    load("os._exit(1)", version(3), version(4))
    assert inner.assembled == [3, 3, 4]
    with pytest.raises(CannotServe, match="exit status 1"):
        load("os._exit(1)", other())


def other():
    """A version with another program."""
    found = version(5)
    (signature,) = found.signatures
    return replace(found, signatures=(replace(signature, program=Blob("sha256:2", 1)),))


def test_a_refusal_is_passed_on(load, inner):
    """What the loader process refuses is refused with its words, once."""
    with pytest.raises(CannotServe, match=r"^for another platform$"):
        load('tell(refused="for another platform")')

    assert inner.assembled == []


def test_a_crash_is_told_and_tried_again(load, inner, tmp_path):
    """A crash is tried again, and the reason names the signal, the step, and the last words."""
    counter = tmp_path / "count"
    script = f"""
        with open({str(counter)!r}, "a") as file: file.write("x")
        print("double free", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
        """

    with pytest.raises(CannotServe, match="SIGSEGV, while compiling 1 of 2: double free"):
        load(script)

    assert counter.read_text() == "xxx"
    assert inner.assembled == []


def test_a_crash_that_passes_is_no_failure(load, inner, tmp_path):
    """A loader process that succeeds at the second attempt is as good as any."""
    once = tmp_path / "once"
    reports = load(
        f"""
        if not os.path.exists({str(once)!r}):
            open({str(once)!r}, "w").close()
            os._exit(7)
        tell(done="")
        """
    )

    assert inner.assembled == [3]
    assert any("exit status 7" in detail and "trying again" in detail for _, detail in reports)


def test_a_hang_is_ended(load, inner):
    """A loader process that takes too long is ended, and not tried again."""
    with pytest.raises(CannotServe, match=r"more than 1 s \(--load-timeout\)"):
        load("time.sleep(60)", load_timeout=1.0)

    assert inner.assembled == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory is taken")
def test_memory_is_limited(load, inner):
    """A loader process that takes too much memory is ended."""
    with pytest.raises(CannotServe, match=r"more than 200000000 bytes \(--load-memory\)"):
        load("held = bytearray(os.urandom(1 << 20)) * 300; time.sleep(60)", load_memory=200_000_000)

    assert inner.assembled == []


def test_an_abandoned_load_leaves_no_process(inner, tmp_path, monkeypatch):
    """When nobody waits for the version any more, its loader process is ended."""
    path = tmp_path / "script.py"
    path.write_text(f"{PREAMBLE}\ntell(state='COMPILING', detail=str(os.getpid()))\ntime.sleep(60)")
    monkeypatch.setattr(apart, "_COMMAND", (sys.executable, str(path)))
    assembler = apart.ApartAssembler(
        inner, Settings("", (), tmp_path, load_apart=True), Proofs(tmp_path / "proofs", ())
    )

    async def abandon():
        running = asyncio.get_running_loop().create_future()

        def report(_, detail):
            if detail.isdecimal():
                running.set_result(int(detail))

        task = asyncio.create_task(assembler.assemble(version(), {}, report))
        pid = await running
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return pid

    pid = asyncio.run(abandon())

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_loader_process_ends_with_who_started_it(tmp_path):
    """A loader process whose serving process was killed ends itself, whatever it waits for."""
    child = tmp_path / "child.py"
    child.write_text(
        textwrap.dedent(
            """
            import sys, time
            from servax_worker.supervisor import end_with_parent
            sys.stdin.buffer.readline()
            end_with_parent(sys.stdin.fileno())
            print("begun", flush=True)
            time.sleep(60)
            """
        )
    )
    command = [sys.executable, str(child)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"task\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"begun\n"
        process.stdin.close()

        assert process.wait(20) == -signal.SIGTERM
