"""Tells which processes of a run died, without the same log again for each that died alike."""

from __future__ import annotations

from collections.abc import Iterable

from secureps.run.processes.supervisor import Died, Finished
from secureps.run.report.terminal import Progress
from secureps.wording import named, numberless


class Deaths:
    """Tells which processes died, and why: the last lines of a log once for all who died alike."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told: dict[tuple[str, ...], str] = {}

    def tell(self, news: Iterable[Finished | Died]) -> None:
        """Tells of those who are started again."""
        alike: dict[str, list[Died]] = {}
        for each in news:
            if not isinstance(each, Died):
                continue
            # names, times, ports and lines of a log are their own
            said = tuple(map(numberless, (each.how, *each.tail)))
            if each.tail and said in self._told:
                alike.setdefault(self._told[said], []).append(each)
                continue
            self._told[said] = each.name
            for line in each.tail:
                self._progress.say(f"  {each.name}: {line}", "dim")
            text = f"it is started again, restart {each.restarts}"
            self._progress.say(f"{each.name} died ({each.how}); {text}", "yellow")
        for first, others in alike.items():
            names = named([each.name for each in others])
            text = f"{names} died as {first} did ({others[0].how}); started again"
            self._progress.say(text, "yellow")
