"""sofar.json: the state that `secureps resume` needs besides the parties' journals.

No party journals how long the run was played, and the metrics that its watch has gathered.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from secureps.errors import ConfigError
from secureps.run.report.version_metrics import Gathered
from secureps.run.up.folder import RunFolder
from secureps.store.atomic_file import replace_text


@dataclass(frozen=True)
class ResumeState:
    """The seconds of a run so far, and the metrics of its versions."""

    seconds: float = 0.0
    gathered: Gathered = field(default_factory=Gathered)

    @classmethod
    def read(cls, folder: RunFolder) -> ResumeState:
        """Reads the file, if there is one; ConfigError if it cannot be read."""
        path = folder.report / "sofar.json"
        try:
            record = json.loads(path.read_text())
            known = record["gathered"]
            gathered = Gathered(
                tuple((g, v, elapsed, epsilon) for g, v, elapsed, epsilon in known["lines"]),
                tuple((g, v, scores) for g, v, scores in known["scores"]),
                tuple((g, v, party, k, n, x) for g, v, party, k, n, x in known["figures"]),
            )
            return cls(record["seconds"], gathered)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None

    def write(self, folder: RunFolder) -> None:
        """Writes the file, as JSON with Infinity for an epsilon, which only `read` has to read."""
        replace_text(folder.report / "sofar.json", json.dumps(asdict(self)) + "\n")
