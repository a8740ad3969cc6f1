"""The base installation is enough for servers and `check`; what lacks an extra says which."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from secureps.errors import OperatorError
from secureps.extras import EXTRAS, command, from_extras
from tests.kits.bare import bare
from tests.kits.nursery import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {"sklearn": "scikit-learn", "mlflow": "mlflow-skinny"}
"""Modules that are installed under another name."""
TEXTS = (".md", ".py", ".toml", ".txt", ".ipynb", "", ".yml")
"""Endings of what is read; a Dockerfile has none."""

PLAN = """
name = "small"
versions = 3
[cipher]
name = "{cipher}"
capacity = 8
[[group]]
rule = {{ quorum = 6 }}
"""


def package(requirement: str) -> str:
    """The name that a requirement begins with."""
    found = re.match(r"[\w-]+", requirement)
    assert found is not None
    return found.group()


def test_every_extra_brings_its_modules_and_the_base_none_of_them() -> None:
    optional = PROJECT["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        assert {PACKAGES.get(m, m) for m in modules} == set(map(package, optional[extra]))
    assert set(optional) == {*EXTRAS, "all", "dev", "docs"}
    hidden = {PACKAGES.get(m, m) for modules in EXTRAS.values() for m in modules}
    assert hidden.isdisjoint(map(package, PROJECT["dependencies"]))
    assert optional["all"] == ["secureps[torch,bfv,flower,report]"]
    assert "secureps[all]" in optional["dev"]


def test_every_extra_that_a_text_tells_one_to_install_is_there() -> None:
    """A template's requirements, a page or an error that names another stops whoever follows it."""
    known = set(PROJECT["optional-dependencies"])
    named: dict[str, set[str]] = {}
    for folder in ("", "secureps/**/", "docs/**/", "clients/", "simulations/", "aggregator/"):
        for path in ROOT.glob(f"{folder}*"):
            if path.is_file() and path.suffix in TEXTS:
                text = path.read_text()
                found = re.findall(r"(?:secureps|^pip install .*\.)\[([\w,\s-]+)\]", text, re.M)
                found += re.findall(r"\bcommand\(\"([\w-]+)\"\)", text)
                named.setdefault(path.name, set()).update(
                    each.strip() for extras in found for each in extras.split(",")
                )
    assert named["data-holder.md"] == {"flower"}, "the pattern finds what there is"
    assert named["requirements.txt"] >= {"flower", "torch"}
    assert not {name: extras - known for name, extras in named.items() if extras - known}


def test_an_import_that_no_extra_brings_is_told_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), from_extras():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize(
    ("extra", "module", "code"),
    [
        ("torch", "torch", "ps.TorchTrainer"),
        ("bfv", "zstandard", "import secureps.crypto.bfv_seal"),
        ("report", "sklearn", "ps.datasets.digits(seed=0)"),
    ],
)
def test_what_lacks_an_extra_says_what_to_install(
    extra: str, module: str, code: str, tmp_path: Path
) -> None:
    script = f"""
import secureps as ps
try:
    {code}
except ps.errors.OperatorError as error:
    print(error)
"""
    done = bare(tmp_path, "-c", script, extras=(extra,))
    assert done.stdout == f"{module} is not installed: pip install 'secureps[{extra}]'\n", done


def test_a_flower_app_without_flower_says_what_to_install(tmp_path: Path) -> None:
    script = """
import secureps as ps
try:
    ps.run_flower
except ps.errors.OperatorError as error:
    print(error)
"""
    done = bare(tmp_path, "-c", script, extras=("flower",))
    assert done.stdout.startswith(f"Flower apps need flwr 1.41: {command('flower')}"), done


def test_a_script_that_lacks_an_extra_is_the_operators_to_mend(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("import torch\ndef make(setting): ...\n")
    text = PLAN.format(cipher="plain") + '[federation]\nclients = 6\nscript = "client.py"\n'
    (tmp_path / "plan.toml").write_text(text)
    done = bare(tmp_path, "-m", "secureps", "check", "plan.toml")
    assert done.returncode != 0
    assert f"torch is not installed: {command('torch')}" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("cipher", ["bfv", "rlwe", "plain"])
def test_check_needs_no_extra(cipher: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.format(cipher=cipher))
    done = bare(tmp_path, "-m", "secureps", "check", "plan.toml", "--values", "1000")
    assert done.returncode == 0, done.stderr


def test_a_federation_needs_no_extra_and_says_why_nothing_is_drawn(tmp_path: Path) -> None:
    """Servers, key holders, clients in NumPy: each a process, and rlwe between them."""
    assert bare(tmp_path, "-m", "secureps", "new", "own").returncode == 0
    plan = tmp_path / "own" / "plan.toml"
    plan.write_text(plan.read_text().replace("versions = 10", "versions = 1"))
    done = bare(tmp_path, "-m", "secureps", "up", "own/plan.toml", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert f"no curves: matplotlib is not installed: {command('report')}" in done.stdout
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_what_an_extra_would_bring_is_an_operators_error() -> None:
    with pytest.raises(OperatorError, match=re.escape(command("flower"))), from_extras():
        raise ModuleNotFoundError("No module named 'flwr.app'", name="flwr.app")
