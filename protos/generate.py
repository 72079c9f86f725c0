"""Writes the committed protobuf modules beside protos/**/*.proto anew."""

import os
import subprocess
import sys
from pathlib import Path

PROTOS = Path(__file__).resolve().parent


def main() -> None:
    """Run the pinned protoc over every .proto file."""
    for stale in PROTOS.rglob("*_pb2*.py*"):
        stale.unlink()
    outputs = ("python", "pyi", "grpc_python", "mypy_grpc")
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}"),
            *(f"--{kind}_out={PROTOS}" for kind in outputs),
            *sorted(map(str, PROTOS.rglob("*.proto"))),
        ],
        check=True,
        # Where protoc finds the plug-in that types the services.
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
    )
    # protoc writes empty service modules for files that declare messages alone.
    for stub in PROTOS.rglob("*_pb2_grpc.py"):
        if "Servicer" not in stub.read_text():
            stub.unlink()
            stub.with_suffix(".pyi").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
