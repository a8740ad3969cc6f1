"""The number of all formats: whoever changes one has to raise it."""

from secureps.messages.format import FINGERPRINT
from tests.golden.schema import fingerprint
from tests.kits.nursery import ROOT


def test_no_format_changes_under_the_same_number() -> None:
    assert fingerprint() == FINGERPRINT, (
        "a field of a message, record, fold or file is another than FORMAT says: raise "
        f"FORMAT, unless it was raised since the last release, and write down {fingerprint()!r} "
        "as its FINGERPRINT"
    )


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
