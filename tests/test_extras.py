"""What lacks a module of an extra says which extra brings it.

That the base installation is enough for servers and `check`: `tests/project/test_installation.py`.
"""

import re
import tomllib
from pathlib import Path

import pytest

from secureps.errors import OperatorError
from secureps.extras import EXTRAS, command, from_extras
from secureps.run.new import new
from tests.kits.bare import bare
from tests.kits.nursery import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {
    "sklearn": "scikit-learn",
    "mlflow": "mlflow-skinny",
    "opentelemetry": "opentelemetry-exporter-otlp",
}
"""Modules that are installed under another name."""
TEXTS = (".md", ".py", ".toml", ".txt", ".ipynb", "", ".yml")
"""Endings of what is read; a Containerfile has none."""


def package(requirement: str) -> str:
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


NAMED = r"(?:secureps|pip install [^\n`]*\.(?:whl)?)\[([\w,\s-]+)\]"


def test_every_extra_that_a_text_tells_one_to_install_is_there() -> None:
    """A template's requirements, a page or an error that names another stops whoever follows it."""
    known = set(PROJECT["optional-dependencies"])
    named: dict[str, set[str]] = {}
    for folder in ("", "secureps/**/", "docs/**/", "clients/", "simulations/", "aggregator/"):
        for path in ROOT.glob(f"{folder}*"):
            if path.is_file() and path.suffix in TEXTS:
                text = path.read_text()
                found = re.findall(
                    r"(?:secureps|pip install [^\n`]*\.(?:whl)?)\[([\w,\s-]+)\]", text, re.M
                )
                found += re.findall(r"(?<!\.)\bcommand\(\"([\w-]+)\"\)", text)
                named.setdefault(path.name, set()).update(
                    each.strip() for extras in found for each in extras.split(",")
                )
    assert named["data-holder.md"] == {"torch"}, "the pattern finds what there is"
    assert named["requirements.txt"] >= {"flower", "torch"}
    assert not {name: extras - known for name, extras in named.items() if extras - known}


def test_an_import_that_no_extra_brings_is_told_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), from_extras():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize(
    ("extra", "module", "code"),
    [
        ("torch", "opacus", "ps.check('net/plan.toml', run_script=True)"),
        ("bfv", "tenseal", "import secureps.crypto.bfv_seal"),
        ("report", "matplotlib", "print(ps.run.report.plots.why_undrawable())"),
    ],
)
def test_what_lacks_one_module_says_which_extra_brings_it(
    extra: str, module: str, code: str, tmp_path: Path
) -> None:
    """Somebody has torch without opacus, say; what lacks a whole extra: `test_installation`."""
    new("net", "torch", tmp_path)
    script = f"""
import secureps as ps
import secureps.run.report.plots
try:
    {code}
except ps.errors.OperatorError as error:
    print(error)
"""
    done = bare(tmp_path, "-c", script, modules=(module,))
    assert done.stdout.endswith(f"{module} is not installed: {command(extra)}\n"), done


def test_what_an_extra_would_bring_is_an_operators_error() -> None:
    with pytest.raises(OperatorError, match=re.escape(command("flower"))), from_extras():
        raise ModuleNotFoundError("No module named 'flwr.app'", name="flwr.app")
