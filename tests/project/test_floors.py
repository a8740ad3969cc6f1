"""The rooms of the package: what each may import, and who imports heavy packages.

A room is a folder of `secureps/`, or a few modules and folders that are named together here. It
imports rooms of lower floors only; rooms of one floor know nothing of each other. Within a room
modules import each other without a circle.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.kits.nursery import ROOT as TREE

ROOT = TREE / "secureps"

BASE = (
    "arguments buffers compiled errors exhaustion extras file_access files messages/encoding "
    "tracebacks wording"
)

FLOORS = (
    (BASE,),
    ("config", "messages"),
    ("codec", "crypto", "model", "privacy"),
    ("policy",),
    ("roles",),
    ("roles/coordinator", "roles/holder", "roles/member", "roles/shard"),
    ("store", "wire"),
    ("audit", "service"),
    ("client", "scenario"),
    ("run",),
    ("dashboard", "flower"),
    ("run/cli run/commands run/own_script __init__ __main__",),
)
"""From the ground up."""

FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
ROOM_OF = {part: room for room in FLOOR for part in room.split()}

MEMBER_DOORS = {"member", "settings", "tasks", "terms"}
"""What `client/` knows of `roles/member`; the rest of it is the member's own."""

ONLY_IMPORTERS = {
    "tenseal": {"crypto/bfv_seal.py"},
    "torch": {
        "client/canaries.py",
        "client/patch.py",
        "client/private_sum.py",
        "client/torch.py",
        "client/torch_ranks.py",
        "client/torch_records.py",
        "client/torch_sgd.py",
    },
    "opacus": {"client/torch_sgd.py"},
    "dp_accounting": {"privacy/accountant.py"},
    "matplotlib": {"run/report/plots.py"},
    "sklearn": {"scenario/datasets.py"},
    "scipy": set(),
    "matplotlib.pyplot": set(),
    "mlflow": {"run/report/version_metrics.py"},
    "tensorboard": {"run/report/version_metrics.py"},
    "msgspec": {"wire/msgpack.py"},
    "prometheus_client": {"service/metrics.py"},
    "fsspec": {"files/objects.py"},
    "yaml": {"run/deploy/deployment.py"},
    "ray": {"run/simulate/ray_cluster.py"},
    "opentelemetry": {"service/tracing.py"},
    "pickle": set(),
    "flwr": {
        "client/flower/script.py",
        "client/flower/app.py",
        "client/flower/trainer.py",
        "client/flower/server.py",
        "flower/mod.py",
        "flower/post.py",
        "flower/strategy.py",
    },
}


def modules() -> list[Path]:
    """Those of the package; templates are other people's modules once they are anybody's."""
    return sorted(p for p in ROOT.rglob("*.py") if "templates" not in p.parts)


@cache
def imports(path: Path) -> frozenset[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found)


def dotted(path: Path) -> str:
    return ".".join(("secureps", *path.relative_to(ROOT).with_suffix("").parts))


@cache
def graph() -> dict[str, frozenset[str]]:
    paths = {dotted(path): path for path in modules()}

    def target(name: str) -> str:
        while name and name not in paths:
            name = name.rpartition(".")[0]
        return name

    return {
        name: frozenset({target(each) for each in imports(path)} - {"", name})
        for name, path in paths.items()
    }


def room(module: str) -> str:
    parts = module.split(".")[1:]
    names = ("/".join(parts[:k]) for k in range(len(parts), 0, -1))
    found = next((ROOM_OF[name] for name in names if name in ROOM_OF), None)
    assert found is not None, f"{module} has no room in FLOORS"
    return found


def picture() -> str:
    """The rooms by floors, from the top, as the page has them."""
    floors = ("   ".join("base" if each == BASE else each for each in rooms) for rooms in FLOORS)
    return "\n".join(reversed([*floors])).replace(" __init__ __main__", "")


def test_the_picture_of_the_rooms_is_made_from_the_code() -> None:
    page = (TREE / "docs" / "architecture.md").read_text()
    assert f"```text\n{picture()}\n```" in page, picture()


def test_imports_point_down() -> None:
    wrong = [
        f"{module} ({own}) imports {name} ({other}), which is not below it"
        for module, names in graph().items()
        for name in names
        if (own := room(module)) != (other := room(name)) and FLOOR[other] >= FLOOR[own]
    ]
    assert wrong == []


def test_every_room_is_there_and_has_a_floor_of_its_own() -> None:
    assert {room(module) for module in graph()} == set(FLOOR)


def circle(below: dict[str, frozenset[str]]) -> tuple[str, ...]:
    done = set[str]()

    def visit(node: str, above: tuple[str, ...]) -> tuple[str, ...]:
        if node in above:
            return (*above[above.index(node) :], node)
        if node in done:
            return ()
        found = next(filter(None, (visit(each, (*above, node)) for each in below[node])), ())
        done.add(node)
        return found

    return next(filter(None, (visit(node, ()) for node in below)), ())


def test_no_circles_between_modules() -> None:
    assert circle(graph()) == ()


def test_clients_know_little_of_their_machine() -> None:
    inner = "secureps.roles.member."
    known = {
        name.removeprefix(inner)
        for module, names in graph().items()
        if module.startswith("secureps.client.")
        for name in names
        if name.startswith(inner)
    }
    assert known <= MEMBER_DOORS


@pytest.mark.parametrize("folder", ["benchmarks", "clients", "secureps"])
def test_only_kits_of_tests_are_of_use_elsewhere(folder: str) -> None:
    found = {
        f"{path}: {name}"
        for path in sorted((TREE / folder).rglob("*.py"))
        for name in imports(path)
        if name.split(".")[0] == "tests"
    }
    allowed = ("tests.kits.", "tests.chaos.real.") if folder == "benchmarks" else "nothing"
    assert {each for each in found if not each.split(": ")[1].startswith(allowed)} == set()


@pytest.mark.parametrize("package", sorted(ONLY_IMPORTERS))
def test_heavy_packages_have_one_importer(package: str) -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in modules()
        for name in imports(path)
        if name == package or name.startswith(f"{package}.")
    }
    assert found <= ONLY_IMPORTERS[package]
