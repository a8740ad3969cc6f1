"""Operation: the notebooks run from top to bottom, without a network, and learn what they say."""

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kits.nursery import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
FIRST = '[losses, result.epsilon, result.folder.joinpath("report").is_dir()]'
OWN = "[result.score, result.epsilon, price, patients.score, patients.epsilon]"
RESULTS = {"first_federation": FIRST, "own_model": OWN}
"""What is looked at once a notebook's cells have run."""


def read(name: str) -> dict[str, Any]:
    book: dict[str, Any] = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))
    return book


def play(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a notebook in a kernel of its own, as Jupyter does, and returns its results."""
    brought = "the extra `dev` brings it, with a kernel"
    nbclient = pytest.importorskip("nbclient", reason=brought)
    nbformat = pytest.importorskip("nbformat", reason=brought)
    pytest.importorskip("ipykernel", reason=brought)
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(folder / "jupyter"))  # and not the user's
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # where nobody answers
    work = folder / "work"
    work.mkdir()
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(book)
    look = f"import json; print(json.dumps({RESULTS[name]}))"
    book.cells.append(nbformat.v4.new_code_cell(look))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    client = nbclient.NotebookClient(
        book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": path})
    return json.loads(book.cells[-1].outputs[0].text)


def test_every_notebook_is_tried() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_is_kept_without_outputs(name: str) -> None:
    """They would differ after each run, and tell whose machine it was."""
    cells = read(name)["cells"]
    assert 6 <= len(cells) <= 10
    for cell in cells:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_imports_from_the_front_door_and_what_pages_name(name: str) -> None:
    known = {"numpy", "secureps", "sklearn", "torch", "clinic"} | sys.stdlib_module_names
    for cell in read(name)["cells"]:
        code = "".join(line for line in cell["source"] if not line.startswith("%%"))
        if cell["cell_type"] == "markdown" or cell["source"][0] == "%%writefile plan.toml\n":
            continue
        for node in ast.walk(ast.parse(code)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for each in names:
                assert each.partition(".")[0] in known
                assert not each.startswith("secureps.")


@pytest.mark.slow
def test_a_first_federation_learns_nearly_what_all_records_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, epsilon, has_report = play("first_federation", tmp_path, monkeypatch)
    assert losses["the federation"] < losses["one clinic alone"] - 0.05
    assert losses["the federation"] < losses["all records in one place"] + 0.05
    assert epsilon is None
    assert has_report


@pytest.mark.slow
def test_an_own_model_learns_within_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of records, then of whole patients; a guess has 0.63."""
    score, epsilon, price, of_patients, spent = play("own_model", tmp_path, monkeypatch)
    assert score["accuracy"] > 0.8
    assert of_patients["accuracy"] > 0.8
    assert 5 < epsilon <= 6
    assert 5 < spent <= 6
    assert price["unit"].startswith("all records of one person")
