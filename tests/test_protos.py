"""The API is documented, field by field."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "protos" / "servax_proto"
PROTOS = sorted(FOLDER.rglob("*.proto"))


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_service_method_and_field_is_documented(path):
    """Each rpc and each field follows a comment."""
    lines = path.read_text().splitlines()
    undocumented = []
    for above, line in zip(["", *lines], lines, strict=False):
        field = re.match(r"^\s+(?:optional |repeated )?[\w.]+(?:<.*>)? (\w+) = \d+\b.*;", line)
        rpc = re.match(r"^\s+rpc (\w+)", line)
        name = (rpc or field) and (rpc or field)[1]
        if name and not above.strip().startswith("//"):
            undocumented.append(name)

    assert undocumented == []
