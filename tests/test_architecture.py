"""The tree is the architecture: what may import what."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOTS = {
    "servax": "client/servax",
    "servax_registry": "registry/servax_registry",
    "servax_worker": "worker/servax_worker",
}
MAY_IMPORT = {
    "servax": {"servax", "servax_proto"},
    "servax_registry": {"servax_registry", "servax_proto"},
    "servax_worker": {"servax_worker", "servax", "servax_proto"},
}
OURS = {"servax", "servax_proto", "servax_registry", "servax_worker"}
SPEAKS_PROTOBUF = {
    "servax": {"convert", "_calls", "_blocking", "aio", "tensors"},
    "servax_registry": {"convert", "servicer", "interceptors", "health", "server"},
    "servax_worker": {
        *("convert", "servicer", "management", "parts", "interceptors", "health", "server"),
        "protocols",
    },
}


def modules():
    """Yield (package, module path below the package, its imports) of every module of ours."""
    for package, folder in ROOTS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            imported = set()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    base = "." * node.level + (node.module or "")
                    imported |= {base} | {f"{base}.{alias.name}" for alias in node.names}
            module = path.relative_to(ROOT / folder).with_suffix("")
            yield pytest.param(package, module, imported, id=f"{package}/{module}")


MODULES = list(modules())


@pytest.mark.parametrize(("package", "module", "imported"), MODULES)
def test_packages_import_only_to_the_left(package, module, imported):
    """A package imports only those of our packages that stand left of it in the design."""
    ours = {name.split(".")[0] for name in imported} & OURS

    assert ours <= MAY_IMPORT[package]


@pytest.mark.parametrize(("package", "module", "imported"), MODULES)
def test_jax_is_imported_in_few_places(package, module, imported):
    """Only the worker's runtime, placement, the trial's caged child and `servax.hlo` import JAX."""
    uses_jax = any(name.split(".")[0] in {"jax", "jaxlib"} for name in imported)

    assert not uses_jax or (package, module.parts[-1]) in {
        ("servax_worker", "runtime"),
        ("servax_worker", "placement"),
        ("servax_registry", "trial_child"),
        ("servax", "hlo"),
    }


@pytest.mark.parametrize(("package", "module", "imported"), MODULES)
def test_only_the_edges_speak_protobuf(package, module, imported):
    """Generated modules are imported only where messages are converted, served or sent."""
    speaks = any("_pb2" in name for name in imported)

    assert not speaks or module.parts[0] in SPEAKS_PROTOBUF[package]


def test_the_environment_is_read_in_one_place():
    """No module of a service or of the library reads os.environ: settings come from the CLI. The
    worker's runtime looks at what XLA, which it starts, is going to read there.
    """
    readers = [
        str(path.relative_to(ROOT))
        for folder in ROOTS.values()
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]

    assert readers == ["worker/servax_worker/runtime.py"]
