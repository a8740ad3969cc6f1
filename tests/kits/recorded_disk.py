"""A disk that records each step, and shows what a power cut between any two of them may leave.

A step is a call by which Python code touches the disk. The disk keeps only what was waited for:
bytes of a file once the file was synced, names once their folder was. SQLite waits by itself
(`tests/store/test_durability.py`), so its files are taken as they are.
"""

import builtins
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

STEPS = ("open", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "chmod")
SYNCS = ("fsync", "fdatasync")
Place = tuple[int, str]
"""The number of a folder, and a name in it."""
Names = dict[Place, int]
"""The number of the file or folder that lies at each place."""
Change = dict[Place, int | None]
"""The places that one step changed; None: nothing lies there any more."""


@dataclass(frozen=True)
class Moment:
    """The disk between two steps.

    Args:
        after: the step before.
        said: what the party had said by then.
        names: what the disk keeps of names; changes: what may be lost of them, oldest first.
        kept: bytes that the disk keeps of each file; there: bytes as a process reads them.
        modes: of files and folders.
    """

    after: str
    said: tuple[Any, ...]
    names: Names
    changes: tuple[Change, ...]
    kept: Mapping[int, bytes]
    there: Mapping[int, bytes]
    modes: Mapping[int, int]

    def names_left(self) -> list[Names]:
        """What may be left of names: changes up to one of them, or those of one folder alone."""
        folders = {folder for change in self.changes for folder, _ in change}
        alone = [[c for c in self.changes if any(at == f for at, _ in c)] for f in folders]
        first = [self.changes[:count] for count in range(len(self.changes) + 1)]
        return [_changed(self.names, changes) for changes in (*first, *alone)]

    def bytes_left(self) -> list[Mapping[int, bytes]]:
        """What may be left of bytes: what was synced, half of what was written since, or all."""
        numbers = self.there.keys()
        synced = {number: self.kept.get(number, b"") for number in numbers}
        return [synced, {n: _torn(synced[n], self.there[n]) for n in numbers}, self.there]


@dataclass(frozen=True)
class Cut:
    """What one power cut left.

    Args:
        folder: the recorded folder, as it is after the cut.
        said: what the party had said before.
        nameless: bytes on the disk that have no name.
        after: the step before.
    """

    folder: Path
    said: tuple[Any, ...]
    nameless: frozenset[bytes]
    after: str


@dataclass
class RecordedDisk:
    """The steps that are taken in a folder; what is in it at the beginning is durable.

    Args:
        root: the folder.
        aside: a folder on the same disk, for links that keep files whose names go.
        begins: what is durable at the beginning; None: all that is in the folder.
        seen: what cuts have left, of this disk and of those after a kill.
    """

    root: Path
    aside: Path
    begins: Moment | None = None
    seen: set[object] = field(default_factory=set, repr=False)
    said: list[Any] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list, repr=False)
    open_to_others: set[str] = field(default_factory=set)
    """Paths that others could open at some moment."""
    _names: Names = field(default_factory=dict)
    _durable: Names = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _kept: dict[int, bytes] = field(default_factory=dict)
    _there: dict[int, bytes] = field(default_factory=dict)
    _folders: dict[int, int] = field(default_factory=dict)
    _busy: bool = False

    def say(self, what: Any) -> None:
        """The party tells somebody: from now on it must hold."""
        self.said.append(what)
        self._look(f"said {what!r:.60}")

    @contextmanager
    def recording(self) -> "Iterator[RecordedDisk]":
        """For its time each step is recorded."""
        self.aside.mkdir(parents=True, exist_ok=True)
        self._look("the beginning")
        begins = self.begins
        if begins is None:
            self._kept, self._durable, self._changes = self._there.copy(), self._names.copy(), []
        else:
            self._kept, self._durable = {**begins.kept}, begins.names
            self._changes = [*begins.changes]
            self._there = {**begins.there, **self._there}
        self.moments.clear()
        wraps = dict.fromkeys(STEPS, self._step) | dict.fromkeys(SYNCS, self._sync)
        patches = [
            patch.object(os, name, wrap(name, getattr(os, name))) for name, wrap in wraps.items()
        ]
        opened = self._step("open", io.open)
        patches += [patch.object(io, "open", opened), patch.object(builtins, "open", opened)]
        if hasattr(os, "fchmod"):
            patches.append(patch.object(os, "fchmod", self._step("fchmod", os.fchmod)))
        try:
            for each in patches:
                each.start()
            self._look("the beginning")
            yield self
        finally:
            for each in reversed(patches):
                each.stop()
            self._look("the end")
            for handle in self._folders.values():
                os.close(handle)

    def cuts(self, beside: Path) -> Iterator[Cut]:
        """Each folder that a power cut may have left, in a folder of its own below `beside`."""
        for moment in self.moments:
            for names in moment.names_left():
                for content in moment.bytes_left():
                    tree = self._tree(names)
                    files = frozenset((path, content.get(n)) for path, n in tree.items())
                    named = set(tree.values())
                    nameless = frozenset(d for n, d in content.items() if d and n not in named)
                    state = (files, nameless, len(moment.said))
                    if state not in self.seen:
                        self.seen.add(state)
                        folder = beside / f"{len(self.seen)}"
                        _lay_out(folder, tree, content, moment.modes)
                        yield Cut(folder, moment.said, nameless, moment.after)

    def kills(self, beside: Path) -> "Iterator[RecordedDisk]":
        """The disk after a kill at each moment: all is there, and what was not durable is not."""
        known = list[object]()
        for moment in self.moments:
            tree = self._tree(_changed(moment.names, moment.changes))
            durable = self._tree(moment.names)
            state = [
                {path: content.get(number) for path, number in names.items()}
                for names in (tree, durable)
                for content in (moment.there, moment.kept)
            ]
            if state not in known:
                known.append(state)
                folder = beside / f"{len(known)}" / "disk"
                _lay_out(folder, tree, moment.there, moment.modes)
                aside = folder.with_name("aside")
                numbers = self._numbers(moment, tree, folder, aside)
                yield RecordedDisk(folder, aside, _renumbered(moment, numbers), self.seen)

    def _numbers(
        self, moment: Moment, tree: Mapping[str, int], folder: Path, aside: Path
    ) -> dict[int, int]:
        """The numbers in a folder laid out of files and folders of this disk, by their own."""
        numbers = {self.root.stat().st_ino: folder.stat().st_ino}
        numbers |= {number: (folder / path).stat().st_ino for path, number in tree.items()}
        aside.mkdir()
        changes: list[Change] = [{**moment.names}, *moment.changes]
        for change in changes:
            named = {n for n in change.values() if n is not None} | {above for above, _ in change}
            for number in named - numbers.keys():
                older = aside / f"older-{number}"
                if number in moment.there:
                    older.write_bytes(moment.there[number])
                else:
                    older.mkdir()
                numbers[number] = older.stat().st_ino
                older.rename(aside / str(numbers[number]))
        return numbers

    def _step(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            what = f"{name} {' '.join(os.path.basename(str(each)) for each in given[:2])}"
            self._look(f"before {what}")
            result = real(*given, **named)
            self._look(what)
            return result

        return step

    def _sync(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def sync(file: int) -> None:
            found = os.fstat(file)
            self._look(f"before {name}")
            if stat.S_ISDIR(found.st_mode):
                self._sync_names(found.st_ino)
            elif found.st_ino in self._there:
                self._kept[found.st_ino] = self._there[found.st_ino]
            self._look(name)

        return sync

    def _sync_names(self, folder: int) -> None:
        """Keeps the changes in a folder, and those before them at the same places."""
        places, kept = set[Place](), list[Change]()
        for change in reversed(self._changes):
            if places & change.keys() or any(at == folder for at, _ in change):
                places |= change.keys()
                kept.append(change)
        self._durable = _changed(self._durable, reversed(kept))
        self._changes = [change for change in self._changes if change not in kept]

    def _look(self, after: str) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            names, modes, owned = Names(), dict[int, int](), set[int]()
            self._scan(self.root, names, modes, owned)
            there = {n: (self.aside / str(n)).read_bytes() for n in self._files(modes)}
            for number in owned:  # SQLite has waited for what it wrote
                if self._there.get(number) != there[number]:
                    self._kept[number] = there[number]
            change: Change = {p: n for p, n in names.items() if self._names.get(p) != n}
            change |= dict.fromkeys(self._names.keys() - names.keys())
            if change:
                self._changes.append(change)
            for folder, name in change:
                if name.endswith("-wal"):  # SQLite waits for the folder in which it makes its log
                    self._sync_names(folder)
            self._names, self._there = names, there
            moment = Moment(
                after,
                tuple(self.said),
                self._durable.copy(),
                tuple(self._changes),
                self._kept.copy(),
                there,
                modes,
            )
            if not self.moments or replace(self.moments[-1], after=after) != moment:
                self.moments.append(moment)
        finally:
            self._busy = False

    def _files(self, modes: Mapping[int, int]) -> Iterable[int]:
        return self._there.keys() | {n for n, mode in modes.items() if stat.S_ISREG(mode)}

    def _scan(self, folder: Path, names: Names, modes: dict[int, int], owned: set[int]) -> None:
        here = folder.stat().st_ino
        if here not in self._folders:  # while it is open its number is no other folder's
            self._folders[here] = os.open(folder, os.O_RDONLY)
        for entry in os.scandir(folder):
            if entry.name.endswith("-shm"):
                continue
            found = entry.stat(follow_symlinks=False)
            number = found.st_ino
            names[here, entry.name], modes[number] = number, found.st_mode
            if found.st_mode & 0o077:
                self.open_to_others.add(os.path.relpath(entry.path, self.root))
            if stat.S_ISDIR(found.st_mode):
                self._scan(Path(entry.path), names, modes, owned)
                continue
            if number not in self._there and not (self.aside / str(number)).exists():
                os.link(entry.path, self.aside / str(number))
            if entry.name.endswith((".db", ".db-wal")):
                owned.add(number)

    def _tree(self, names: Names) -> dict[str, int]:
        """What lies at each path that leads from the root."""
        by_folder = dict[int, list[tuple[str, int]]]()
        for (folder, name), number in names.items():
            by_folder.setdefault(folder, []).append((name, number))
        tree, waiting = dict[str, int](), [("", self.root.stat().st_ino)]
        while waiting:
            above, folder = waiting.pop()
            for name, number in by_folder.get(folder, ()):
                tree[f"{above}{name}"] = number
                waiting.append((f"{above}{name}/", number))
        return tree


def recorded(folder: Path) -> RecordedDisk:
    """A disk whose root is FOLDER/disk, of which others may read nothing."""
    (folder / "disk").mkdir(0o700, parents=True)
    return RecordedDisk(folder / "disk", folder / "aside")


def _changed(names: Names, changes: Iterable[Change]) -> Names:
    after: dict[Place, int | None] = {**names}
    for change in changes:
        after |= change
    return {place: number for place, number in after.items() if number is not None}


def _renumbered(moment: Moment, numbers: Mapping[int, int]) -> Moment:
    def change(changed: Mapping[Place, int | None]) -> Change:
        return {
            (numbers[above], name): None if number is None else numbers[number]
            for (above, name), number in changed.items()
        }

    return replace(
        moment,
        names=_changed({}, [change(moment.names)]),
        changes=tuple(map(change, moment.changes)),
        kept={numbers[n]: data for n, data in moment.kept.items() if n in numbers},
        there={numbers[n]: data for n, data in moment.there.items() if n in numbers},
    )


def _torn(synced: bytes, there: bytes) -> bytes:
    """The first half of what was written since a file was synced."""
    if synced == there:
        return there
    pairs = enumerate(zip(synced, there, strict=False))
    other = [at for at, (old, new) in pairs if old != new] or [min(len(synced), len(there))]
    end = other[-1] + 1 if len(synced) == len(there) else len(there)
    middle = (other[0] + end) // 2
    return there[:middle] + synced[middle : len(there)]


def _lay_out(
    folder: Path, tree: Mapping[str, int], content: Mapping[int, bytes], modes: Mapping[int, int]
) -> None:
    folder.mkdir(parents=True)
    for path, number in sorted(tree.items()):
        if number in content:
            (folder / path).write_bytes(content[number])
        else:
            (folder / path).mkdir()
        (folder / path).chmod(stat.S_IMODE(modes.get(number, 0o600)))
