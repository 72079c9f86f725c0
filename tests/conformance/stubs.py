"""Makes tensorflow-serving-api importable without TensorFlow.

    python -m tests.conformance.stubs [DIRECTORY]

The package's stubs import the generated messages of TensorFlow itself, a package of 270 MB (more
than 1 GB once it is installed) whose import takes seconds. All that they need of it are its
`*_pb2.py` files, one megabyte, which import nothing but protobuf. This downloads both packages with
pip and unpacks the stubs and these files, as they are, into a directory for PYTHONPATH.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "2.21.0"
DIRECTORY = Path(__file__).resolve().parents[2] / ".cache" / f"tensorflow-serving-api-{VERSION}"


def unpack(directory: Path = DIRECTORY) -> Path:
    """Makes the directory unless it is there; returns it. Raises CalledProcessError."""
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
            wheels, unpacked = Path(temporary, "wheels"), Path(temporary, "unpacked")
            _download(wheels)
            for wheel in wheels.glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(unpacked, [n for n in archive.namelist() if _wanted(n)])
            unpacked.rename(directory)
    return directory


def _download(directory: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            # The files are the same on every platform.
            *("--only-binary", ":all:", "--platform", "manylinux_2_27_x86_64"),
            *("--python-version", "3.11", "--dest", str(directory)),
            *(f"tensorflow-serving-api=={VERSION}", f"tensorflow-cpu=={VERSION}"),
        ],
        check=True,
    )


def _wanted(name: str) -> bool:
    return name.endswith(".py") and (name.startswith("tensorflow_serving/") or "_pb2" in name)


if __name__ == "__main__":
    print(unpack(*map(Path, sys.argv[1:2])))
