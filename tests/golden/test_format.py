"""The number of all formats: whoever changes one has to raise it."""

from __future__ import annotations

from secureps.messages.format import FINGERPRINT, FORMAT, OLDEST_CHECKPOINT, OLDEST_LEDGER
from tests.golden.schema import fingerprint, schema
from tests.golden.stage import FORMATS, read_json
from tests.kits.nursery import ROOT


def test_no_format_changes_under_the_same_number() -> None:
    assert fingerprint() == FINGERPRINT, (
        "a field of a message, record, file or of the proto is another than FORMAT says: raise "
        f"FORMAT, unless it was raised since the last release, and write down {fingerprint()!r} "
        "as its FINGERPRINT"
    )


def test_a_released_format_is_what_it_was() -> None:
    """A fingerprint can be written down anew; the schema of a format with files cannot."""
    if FORMAT in FORMATS:
        assert schema() == read_json(FORMATS[FORMAT] / "schema.json"), "raise FORMAT"


def test_numbers_only_grow() -> None:
    assert max(FORMATS) <= FORMAT
    assert min(FORMATS) >= OLDEST_CHECKPOINT
    assert min(FORMATS) >= OLDEST_LEDGER


def test_parties_of_one_format_cannot_tell_each_others_versions() -> None:
    """So any versions of one format mix, and each process may be upgraded by itself."""
    # to a person, in a process's own log, and in its traces
    saying = {"__init__.py", "run/cli.py", "service/process.py", "service/spans.py"}
    package = ROOT / "secureps"
    known = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "__version__" in path.read_text().replace("numba.__version__", "")
    }
    assert known == saying
