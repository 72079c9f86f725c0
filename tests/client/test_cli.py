"""The command line: what people and scripts see, and the exit codes."""

import json
import os
import signal
import subprocess
import sys
from datetime import date, timedelta
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from jax import export

from servax.cli import main

PROGRAM = b"a program"


@pytest.fixture
def run(registry_address, worker_address):
    """Run a command; the addresses come from the environment."""
    runner = CliRunner(env={"SERVAX_REGISTRY": registry_address, "SERVAX_WORKER": worker_address})

    def command(*arguments, code=0, **kwargs):
        result = runner.invoke(main, [str(argument) for argument in arguments], **kwargs)
        assert code == result.exit_code, result.output
        return result

    return command


@pytest.fixture
def program(file_of):
    """A file with a program."""
    return file_of(PROGRAM)


def test_a_program_is_pushed_and_pulled(run, program, file_of, tmp_path):
    """What push stores, pull gives back, weights included."""
    weights = file_of(b"weights")
    pushed = run("push", "lm", program, "--weights", weights, "--alias", "production")

    assert "lm:1" in pushed.stdout
    assert "production" in pushed.stdout
    assert pushed.stderr == ""

    pulled = run("pull", "lm@production", "-o", tmp_path / "out", "--weights", tmp_path / "w")

    assert pulled.stdout == f"lm:1 is in {tmp_path / 'out'}\n"
    assert (tmp_path / "out").read_bytes() == PROGRAM
    assert (tmp_path / "w" / "model.safetensors").read_bytes() == b"weights"


def test_everything_about_a_version_can_be_given(run, program, file_of):
    """Signatures, labels and a description given at push are shown."""
    run(
        *("push", "lm", program, "--signature", "prefill"),
        *("--program", f"decode={file_of(b'decode')}"),
        *("--description", "trained on [rain]", "--label", "data=rain=x"),
    )

    shown = run("show", "lm").stdout

    for text in ("prefill", "decode", "trained on [rain]", "label data", "rain=x"):
        assert text in shown
    assert "x" in shown
    assert "[b, 3]" in shown


def test_what_others_wrote_does_not_steer_the_terminal(run, program):
    """Control characters in a description are shown as escapes, line breaks as they are."""
    run("push", "lm", program, "--description", "one\ntwo \x1b[31m\x1b]0;title\x07 \u202e")

    for arguments in (["show", "lm"], ["ls", "lm"]):
        shown = run(*arguments).stdout

        assert r"two \x1b[31m\x1b]0;title\x07 \u202e" in shown
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_models_and_versions_are_listed(run, program):
    """ls lists models, and with a name the versions of one."""
    run("push", "lm", program, "--alias", "production")
    run("push", "lm", program)
    run("push", "mnist", program)

    models = run("ls").stdout
    versions = run("ls", "lm").stdout

    assert [line.split()[:3] for line in models.splitlines() if "202" in line] == [
        ["lm", "2", "2"],
        ["mnist", "1", "1"],
    ]
    assert [line.split()[0] for line in versions.splitlines() if "202" in line] == ["2", "1"]


def test_versions_that_expire_are_asked_for(run, registry, program):
    """ls --expiring asks for what expires before a day, of all models or of one."""
    run("push", "lm", program)

    run("ls", "--expiring", "2026-12-31", "--json")
    assert (registry.listed.model, registry.listed.expiring_before) == ("", "2026-12-31")
    run("ls", "lm", "--expiring", "60d")
    assert registry.listed.model == "lm"
    assert registry.listed.expiring_before == str(date.today() + timedelta(days=60))


@pytest.fixture
def sine(file_of):
    """A file with a real program."""
    exported = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), "float32"))
    return file_of(exported.serialize())


def test_programs_are_shown_as_stablehlo(run, sine, tmp_path):
    """show --hlo prints a program's StableHLO; what exceeds --max-lines is counted; a file gets
    all of it.
    """
    run("push", "lm", sine)
    whole = run("show", "lm", "--hlo")
    assert "stablehlo.sine" in whole.stdout
    assert whole.stderr == ""
    count = whole.stdout.count("\n")

    cut = run("show", "lm", "--hlo", "--max-lines", 2)
    assert cut.stdout == "".join(whole.stdout.splitlines(keepends=True)[:2])
    assert cut.stderr.startswith(f"{count - 2} more lines")

    file = tmp_path / "hlo"
    said = run("show", "lm", "--hlo", "--max-lines", 2, "-o", file).stdout
    assert said == f"lm:1 is in {file}, {count} lines\n"
    assert file.read_text() == whole.stdout


def test_stablehlo_as_json_for_scripts(run, sine, tmp_path):
    """With --json, show --hlo prints one document, with the text or with the file that has it."""
    run("push", "lm", sine)
    whole = run("show", "lm", "--hlo").stdout

    document = json.loads(run("show", "lm", "--hlo", "--max-lines", 1, "--json").stdout)
    assert document == {
        "model": "lm",
        "version": 1,
        "signature": "serving_default",
        "lines": whole.count("\n"),
        "stablehlo": whole.splitlines()[0],
        "file": None,
    }
    file = tmp_path / "hlo"
    document = json.loads(run("show", "lm", "--hlo", "-o", file, "--json").stdout)
    assert (document["stablehlo"], document["file"]) == (None, str(file))


def test_what_has_no_stablehlo_is_refused(run, program, tmp_path, monkeypatch):
    """An unknown signature, a program that cannot be read, a missing JAX and an output without
    --hlo are told apart.
    """
    run("push", "lm", program)
    arguments = ("show", "lm", "--hlo")

    assert "it has: serving_default" in run(*arguments, "--signature", "decode", code=3).stderr
    assert "cannot read the program" in run(*arguments, code=1).stderr
    assert "--output is for --hlo" in run("show", "lm", "-o", tmp_path / "x", code=2).stderr
    monkeypatch.setitem(sys.modules, "jax.extend.mlir", None)
    assert "pip install 'servax[export]'" in run(*arguments, code=1).stderr


def test_aliases_move_and_go(run, program):
    """alias points an alias to a version, with --expect only from there; unalias removes it."""
    run("push", "lm", program)
    run("push", "lm", program)

    assert run("alias", "lm", "production", 1).stdout == "lm@production is lm:1\n"
    run("alias", "lm", "production", 2, "--expect", 1)
    refused = run("alias", "lm", "production", 1, "--expect", 1, code=1)
    assert refused.stderr == "Error: 'production' points to 2\n"
    assert run("unalias", "lm", "production").stdout == "lm@production is gone\n"
    run("show", "lm@production", code=3)


def test_a_version_is_removed(run, program):
    """rm deletes a version without asking where there is nobody to ask."""
    run("push", "lm", program)

    assert run("rm", "lm:1").stdout == "lm:1 is deleted; servax undelete lm:1 brings it back\n"
    run("show", "lm:1", code=3)


def test_at_a_terminal_removal_is_asked_for(run, program, monkeypatch):
    """At a terminal, rm asks; "n" keeps the version, and --yes does not ask."""
    run("push", "lm", program)
    # CliRunner replaces stdin, so the terminal has to be pretended in its class.
    monkeypatch.setattr("servax.cli.registry.sys", Terminal)

    refused = run("rm", "lm:1", code=1, input="n\n")
    assert "Delete lm:1?" in refused.stderr
    run("show", "lm:1")
    run("rm", "lm:1", "--yes")
    run("show", "lm:1", code=3)


class Terminal:
    """Stands for the module sys where somebody sits at a terminal."""

    class stdin:
        """Standard input."""

        @staticmethod
        def isatty():
            """Say that it is a terminal."""
            return True


def test_json_is_for_scripts(run, program, tmp_path):
    """With --json every command prints one document of the documented shape, and nothing else."""
    version = json.loads(run("push", "lm", program, "--alias", "p", "--json").stdout)
    run("push", "lm", program)

    assert sorted(version) == sorted(
        [
            "model",
            "version",
            "create_time",
            "size",
            "description",
            "labels",
            "aliases",
            "creator",
            "source_revision",
            "copied_from",
            "delete_time",
            "expires",
            "signatures",
            "weights",
        ]
    )
    assert version["create_time"] == "2026-01-02T03:04:05+00:00"
    assert version["signatures"][0]["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["b", "3"]}
    ]
    assert json.loads(run("show", "lm:1", "--json").stdout) == version
    assert [v["version"] for v in json.loads(run("ls", "lm", "--json").stdout)] == [2, 1]
    model = json.loads(run("ls", "--json").stdout)[0]
    assert model == {
        "name": "lm",
        "create_time": "2026-01-02T03:04:05+00:00",
        "latest_version": 2,
        "version_count": 2,
        "aliases": {"p": 1},
    }
    assert json.loads(run("pull", "lm:1", "-o", tmp_path / "o", "--json").stdout) == version
    assert json.loads(run("alias", "lm", "p", 2, "--json").stdout)["aliases"] == {"p": 2}
    assert json.loads(run("unalias", "lm", "p", "--json").stdout)["aliases"] == {}
    removed = json.loads(run("rm", "lm:1", "--json").stdout)
    assert (removed["model"], removed["version"]) == ("lm", 1)
    status = json.loads(run("status", "--json").stdout)
    assert (status["platform"], status["versions"][0]["state"]) == ("cpu", "READY")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "nope"], 3, "Error: no model 'nope'; there are: none\n"),
        (["push", "lm", __file__, "--alias", "3"], 2, "'3' is not an alias"),
        (["show", "No Name"], 2, "'No Name' is not a model's name"),
        (["push", "lm", "/no/such/file"], 2, "'/no/such/file' does not exist"),
        (["push", "lm", __file__, "--label", "x"], 2, "not of the form KEY=VALUE"),
        (["push", "lm", __file__, "--program", f"serving_default={__file__}"], 2, "given twice"),
        (["rm", "lm"], 2, "'lm:3'"),
        (["alias", "lm", "production", "0"], 2, "0 is not in the range"),
        (["ls", "--registry", "127.0.0.1:1"], 4, "127.0.0.1:1 does not answer"),
        (["status", "--worker", "127.0.0.1:1"], 4, "127.0.0.1:1 does not answer"),
        (["predict", "other", "--input", "x=@/no/file"], 1, "Error: '/no/file' is not a .npy file"),
        (["predict", "other", "--input", "x=1"], 3, "does not serve other"),
        (["predict", "echo"], 1, "Error: input 'x' is missing\n"),
        (["frobnicate"], 2, "No such command"),
    ],
    ids=range(14),
)
def test_failures_have_codes_and_one_line(run, arguments, code, said):
    """A failure prints what is wrong to stderr, nothing to stdout, and ends with its code."""
    result = run(*arguments, code=code)

    assert result.stdout == ""
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    if code in (1, 3, 4):
        assert result.stderr.count("\n") == 1


def test_an_answer_that_comes_too_late_has_a_code(run, registry):
    """A service that does not answer in time ends the command as one that does not answer."""
    registry.silent = True

    assert "did not answer in time" in run("show", "lm", "--timeout", "0.2", code=4).stderr


def test_a_rejected_program_fails(run, file_of):
    """What the registry refuses ends with code 1 and its words."""
    result = run("push", "lm", file_of(b""), code=1)

    assert result.stderr == "Error: an empty file is no program\n"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "bool", "complex64"])
def test_a_file_is_sent_as_it_is(run, worker, tmp_path, dtype):
    """An array in a .npy file arrives with its dtype, even one that numpy's files do not keep."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = np.array([[1, 0, 1]]).astype(kind)
    np.save(tmp_path / "x.npy", array)
    takes(worker, dtype)

    run("predict", "echo", "--input", f"x=@{tmp_path / 'x.npy'}")

    assert worker.requests[0].inputs["x"].dtype == dtype
    assert worker.requests[0].inputs["x"].shape == [1, 3]


def takes(worker: Any, dtype: str) -> None:
    """Let the worker say that its input x has this dtype."""
    served = worker.served[0]
    signature = served.signatures[0]
    spec = type(signature.inputs[0])("x", dtype, ("b", "3"), 0)
    signature = type(signature)(**(vars(signature) | {"inputs": (spec,)}))
    worker.served = (type(served)(**(vars(served) | {"signatures": (signature,)})),)


@pytest.mark.parametrize(
    ("dtype", "value", "data"),
    [
        ("float32", "[[1, 2.5, -3]]", [[1.0, 2.5, -3.0]]),
        ("bfloat16", "[[1, NaN, -Infinity]]", [[1.0, "NaN", "-Infinity"]]),
        ("int8", "[[1, -128, 127]]", [[1, -128, 127]]),
        ("int4", "[[1, -8, 7]]", [[1, -8, 7]]),
        ("uint64", "[[18446744073709551615]]", [[18446744073709551615]]),
        ("bool", "[[true, false]]", [[True, False]]),
        ("complex64", "[[[1, 2]]]", [[[1.0, 2.0]]]),
        ("float32", "[]", []),
        ("float16", "0.5", 0.5),
    ],
    ids=range(9),
)
def test_json_is_read_as_the_signature_takes_it(run, worker, dtype, value, data):
    """A JSON input gets the dtype of the signature, and comes back as JSON."""
    takes(worker, dtype)

    answer = json.loads(run("predict", "echo", "--input", f"x={value}", "--json").stdout)

    assert answer["file"] is None
    assert answer["outputs"]["output"]["dtype"] == dtype
    assert answer["outputs"]["output"]["data"] == data


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("int32", "[1.5]", "input 'x' takes int32; float64 was given"),
        ("uint8", "[256]", "input 'x' takes uint8, 0 to 255; 256 to 256 was given"),
        ("uint64", "[-1]", "input 'x' takes uint64, 0 to"),
        ("int4", "[8]", "input 'x' takes int4, -8 to 7"),
        ("bool", "[1]", "input 'x' takes bool; int64 was given"),
        ("float32", '["a"]', "input 'x' takes float32; <U1 was given"),
        ("float32", "[[1], [1, 2]]", "input 'x': neither @FILE.npy nor JSON"),
        ("float32", "[1,", "input 'x': neither @FILE.npy nor JSON"),
        ("complex64", "[1]", r"input 'x' takes complex64: give [real, imaginary]"),
    ],
    ids=range(9),
)
def test_json_that_does_not_fit_is_refused(run, worker, dtype, value, said):
    """No JSON number is rounded, wrapped or reinterpreted to make it fit."""
    takes(worker, dtype)

    result = run("predict", "echo", "--input", f"x={value}", code=1)

    assert said in result.stderr
    assert worker.requests == []


def test_unknown_inputs_and_signatures_are_named(run):
    """What the model does not have is refused with what it has."""
    assert "takes x: float32[b,3]" in run("predict", "echo", "--input", "y=1", code=1).stderr
    arguments = ("predict", "echo", "--input", "x=1", "--signature", "decode")
    assert "it has: serving_default" in run(*arguments, code=3).stderr


def test_results_are_printed(run, tmp_path):
    """Without --json, each result is printed with its name, dtype, shape and elements."""
    printed = run("predict", "echo", "--input", "x=[[1,2,3]]").stdout

    assert printed == "output: float32[1, 3]\n[[1. 2. 3.]]\n"


def test_results_are_selected(run, tmp_path):
    """With --output, only the results that it names come back."""
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    inputs = [f"--input={name}=@{tmp_path / 'x.npy'}" for name in ("x", "y", "z")]

    answer = run("predict", "echo", *inputs, "--output=y", "--output", "output", "--json").stdout

    assert sorted(json.loads(answer)["outputs"]) == ["output", "y"]


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["people", "scripts"])
def test_results_are_written_to_a_file(run, tmp_path, flags):
    """With --save, the results are in a file that numpy reads, whatever their names."""
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    inputs = [f"--input={name}=@{tmp_path / 'x.npy'}" for name in ("x", "file")]

    run("predict", "echo", *inputs, "--save", tmp_path / "out.npz", *flags)

    with np.load(tmp_path / "out.npz") as written:
        assert sorted(written) == ["file", "output"]
        assert (written["output"] == np.ones((2, 3))).all()
    assert not (tmp_path / "out.npz.part").exists()


@pytest.mark.parametrize("name", ["archive.npz", "pickle.npy", "text.npy", "empty.npy"])
def test_what_is_no_array_file_is_no_input(run, tmp_path, name):
    """Archives, pickles and anything else are not read as an input."""
    np.savez(tmp_path / "archive", a=np.ones(2))
    np.save(tmp_path / "pickle", np.array([{}]))
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "empty.npy").touch()

    result = run("predict", "echo", f"--input=x=@{tmp_path / name}", code=1)

    assert f"{name}' is not a .npy file" in result.stderr


def test_the_status_is_shown(run):
    """status tells the platform and each version's state."""
    printed = run("status").stdout

    assert "JAX 0.12.0 on cpu" in printed
    assert "READY" in printed


def test_statistics_are_shown(run):
    """stats tells how often versions were called, and how long that took."""
    printed = run("stats").stdout

    assert "0.500000" in printed, "the mean of four requests that took two seconds"
    assert "2.0" in printed, "rows a batch"
    (found,) = json.loads(run("stats", "lm", "--json").stdout)
    assert found["succeeded"] == {"count": 4, "seconds": 2.0}
    assert found["batches"][0]["compute"] == {"count": 2, "seconds": 0.8}
    assert json.loads(run("stats", "other", "--json").stdout) == []


def test_models_are_loaded_and_unloaded(run, worker):
    """load and unload tell what is there; load can wait until it is READY, and tells why not."""
    assert "RESOLVING" in run("load", "lm@production").stdout
    assert json.loads(run("unload", "lm@production", "--json").stdout) == [
        {
            **{"model": "lm", "version": 0, "alias": "production"},
            **{"state": "RESOLVING", "detail": "", "signatures": []},
        }
    ]
    assert run("unload", "lm@production", "--json").stdout == "[]\n"
    assert "READY" in run("load", "echo:1", "--wait").stdout
    assert "not allowed for the test" in run("load", "forbidden", code=1).stderr


def test_the_installed_command_runs(registry_address, program):
    """In a process of its own, with its output in a pipe, a command works and shows no bars."""
    command = [sys.executable, "-c", "from servax.cli import main; main()"]
    environment = os.environ | {"SERVAX_REGISTRY": registry_address}

    done = subprocess.run(
        [*command, "push", "lm", str(program), "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )

    assert json.loads(done.stdout)["version"] == 1
    assert done.stderr == ""


def test_ctrl_c_ends_cleanly(registry, registry_address):
    """Interrupted while it waits, a command ends with code 130 and without a traceback."""
    registry.silent = True
    # Whoever runs the tests in the background may have SIGINT ignored, which children inherit.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from servax.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "show", "lm"],
        env=os.environ | {"SERVAX_REGISTRY": registry_address},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        registry.asked.wait()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()

    assert process.returncode == 130
    assert errors == "interrupted\n"
