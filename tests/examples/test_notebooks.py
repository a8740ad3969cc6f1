"""Operation: the notebooks run from top to bottom, without a network, and learn what they say."""

import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secureps as ps
from tests.kits.disk_federation import DiskFederation
from tests.kits.nursery import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
FIRST = '[losses, result.epsilon, result.folder.joinpath("report").is_dir()]'
OWN = "[result.score, result.epsilon, price, patients.score, patients.epsilon]"
ADAPTERS = "[losses, ends, share]"
NUMBERS = "*(float(federated[name]) for name in ('mean bmi', 'variance bmi'))"
STATISTICS = f"[federated == pooled, {NUMBERS}, federated['decades'], federated['table']]"
RESULTS = {
    "first_federation": FIRST,
    "own_model": OWN,
    "adapters": ADAPTERS,
    "statistics": STATISTICS,
}
"""What is looked at once a notebook's cells have run."""


def read(name: str) -> dict[str, Any]:
    book: dict[str, Any] = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))
    return book


def play(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a notebook in a kernel of its own, as Jupyter does, and returns its results.

    What its cells print goes into `folder/printed`.
    """
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
    outputs = [each for cell in book.cells for each in cell.get("outputs", ())]
    (folder / "printed").write_text("".join(each.get("text", "") for each in outputs))
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
    if name == "adapters":
        known |= {"transformers", "peft", "safetensors", "firm"}
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


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_adapters_learn_from_the_texts_of_all_firms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("transformers", "peft", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    losses, ends, share = play("adapters", tmp_path, monkeypatch)
    assert ends == 3 * ["all 3 versions are made"]
    assert losses["the federation"] < losses["one firm alone"] < losses["the base"] - 0.05
    assert 0 < share < 0.2, "the base stays where it is"


@pytest.mark.slow
def test_statistics_are_those_of_pooled_records_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.datasets import load_diabetes

    is_exact, mean, variance, decades, table = play("statistics", tmp_path, monkeypatch)
    (columns, worse), bins = load_diabetes(return_X_y=True, scaled=False), range(0, 101, 10)
    assert is_exact
    assert "exact totals, of the newest version" in (tmp_path / "printed").read_text()
    assert mean == pytest.approx(10 * columns[:, 2].mean(), rel=1e-12)
    assert variance == pytest.approx(100 * columns[:, 2].var(ddof=1), rel=1e-12)
    assert decades == np.histogram(columns[:, 0], bins)[0].tolist()
    rows = [worse[columns[:, 1] == sex] > worse.mean() for sex in (1, 2)]
    assert table == [[int((~row).sum()), int(row.sum())] for row in rows]


@pytest.mark.slow
def test_a_session_counts_as_the_statistics_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines at the end of that notebook, beside four clinics of its own script."""
    cells = ["".join(cell["source"]) for cell in read("statistics")["cells"]]
    for cell in cells:
        if file := re.match(r"%%writefile (\S+)\n", cell):
            (tmp_path / file[1]).write_text(cell[file.end() :])
    (lines,) = re.findall(r"```python\n(.*?)```", cells[-1], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "clinic", raising=False)
    import clinic  # type: ignore[import-not-found]

    def clinic_of(number: int) -> Any:
        return clinic.make({"partition": number})

    scope: dict[str, Any] = {"ps": ps, "count": clinic.count, "patients": clinic_of(4).patients}
    with DiskFederation(ps.load_plan("plan.toml"), tmp_path, 5, clinic_of) as federation:
        known = {"HOST:PORT": federation.server, "clinic-1": federation.clients[-1]}
        for word, own in known.items():
            lines = lines.replace(word, own)
        exec(lines, scope)
    pooled, totals = clinic.count(clinic.PATIENTS), scope["session"].totals
    parts = [clinic.count(clinic_of(number).patients, pooled) for number in range(5)]
    for name in pooled:
        assert np.array_equal(totals[name], sum(part[name] for part in parts)), name
