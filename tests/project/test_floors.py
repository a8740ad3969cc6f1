"""Imports point strictly downward between packages, and heavy packages have one importer."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent / "secureps"

FLOORS = {
    "errors": 0,
    "tracebacks": 0,
    "config": 0,
    "wording": 0,
    "units": 0,
    "messages": 0,
    "model": 1,
    "codec": 1,
    "privacy": 1,
    "crypto": 2,
    "policy": 3,
    "roles": 4,
    "wire": 5,
    "store": 5,
    "service": 6,
    "client": 7,
    "scenario": 7,
    "run": 8,
}

ONLY_IMPORTERS = {
    "tenseal": {"crypto/bfv_seal.py"},
    "torch": {"client/torch.py", "client/torch_sgd.py"},
    "opacus": {"client/torch_sgd.py"},
    "dp_accounting": {"privacy/accountant.py"},
    "matplotlib": {"run/report/plots.py"},
    "matplotlib.pyplot": set(),
    "mlflow": {"run/report/trackers.py"},
    "tensorboard": {"run/report/trackers.py"},
    "secureps.wire.secureps_pb2": {"wire/protobuf.py"},
    "prometheus_client": {"service/metrics.py"},
    "grpc_health": {"wire/grpc/health.py"},
    "pickle": set(),
    "flwr": {
        "client/flower/script.py",
        "client/flower/app.py",
        "client/flower/mods.py",
        "client/flower/records.py",
        "client/flower/server.py",
        "client/flower/strategy.py",
        "client/flower/trainer.py",
    },
}


def modules() -> list[Path]:
    """Those of the package; templates are other people's modules once they are anybody's."""
    found = (p for p in ROOT.rglob("*.py") if "_pb2" not in p.name)
    return sorted(p for p in found if "templates" not in p.parts)


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, at any depth of its code."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found)


def floor(dotted: str) -> tuple[str, int] | None:
    parts = dotted.split(".")
    if parts[0] != "secureps" or len(parts) < 2 or parts[1] not in FLOORS:
        return None
    return parts[1], FLOORS[parts[1]]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if own not in FLOORS:
        assert own in ("__init__", "__main__")
        return
    for name in imports(path):
        found = floor(name)
        if found is None:
            continue
        package, level = found
        downward = level < FLOORS[own] or package == own or (level == 0 and FLOORS[own] == 0)
        assert downward, f"{path} imports {name}, which is not below it"


def test_no_circles_inside_a_package() -> None:
    graph: dict[str, set[str]] = {}
    names = {".".join(("secureps", *p.relative_to(ROOT).with_suffix("").parts)) for p in modules()}
    for path in modules():
        own = ".".join(("secureps", *path.relative_to(ROOT).with_suffix("").parts))
        wanted = imports(path)
        graph[own] = {n for n in names if n != own and (n in wanted or _inside(n, wanted))}
    done: set[str] = set()

    def visit(node: str, above: tuple[str, ...]) -> None:
        assert node not in above, f"circle: {' -> '.join((*above, node))}"
        if node not in done:
            for below in graph[node]:
                visit(below, (*above, node))
            done.add(node)

    for node in graph:
        visit(node, ())


def _inside(module: str, wanted: frozenset[str]) -> bool:
    return any(name.startswith(f"{module}.") for name in wanted)


@pytest.mark.parametrize("package", sorted(ONLY_IMPORTERS))
def test_heavy_packages_have_one_importer(package: str) -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in modules()
        for name in imports(path)
        if name == package or name.startswith(f"{package}.")
    }
    assert found <= ONLY_IMPORTERS[package]


@pytest.mark.parametrize("folder", ["secureps", "clients", "benchmarks", "tests"])
def test_no_file_is_two(folder: str) -> None:
    paths = [p for p in (ROOT.parent / folder).rglob("*.py") if "_pb2" not in p.name]
    lengths = {str(p): len(p.read_text().splitlines()) for p in paths}
    assert {path: length for path, length in lengths.items() if length > 500} == {}


def test_a_server_does_not_import_torch_or_tenseal() -> None:
    import subprocess
    import sys

    code = (
        "import sys, secureps.run.serve, secureps.run.assemble;"
        "print([m for m in ('torch', 'tenseal', 'opacus') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
