"""A model, its versions and its champion."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ..clock import Clock, SystemClock
from ..errors import ConflictError, CorruptObjectError, InputError, MissingError, StoreError
from ..job.layout import RootPaths
from ..status import State
from ..storage.parallel import in_parallel
from ..storage.registry import open_store
from ..storage.store import Store, create, current
from . import evidence, files, lineage, removal
from .evidence import Evidence
from .records import (
    VERSION_KEY,
    Cause,
    ChampionRecord,
    Move,
    VersionRecord,
    account,
    champion_key,
    decoded,
    encoded,
    shown_time,
    version_key,
)


class ModelVersion:
    """One version of a model, which never changes: `sdk.models()["digits"].version(3).metrics["accuracy"]`.

    Attributes:
        model: the model.
        record: where it comes from: the run, the digest of its code, its data, metrics and parent.
    """

    def __init__(self, model: Model, record: VersionRecord) -> None:
        self.model = model
        self.record = record

    def __repr__(self) -> str:
        return f"<version {self.number} of {self.model!r}>"

    @property
    def number(self) -> int:
        """Its number, from 1."""
        return self.record.number

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """The last value of every metric of its run."""
        return self.record.metrics

    def files(self) -> Sequence[files.ModelFile]:
        """Return its files, sorted by path: `[file.path for file in sdk.models()["digits"].champion().files()]`."""
        with self._readable():
            return files.read(self.model.store, self.record.manifest).files

    def download(self, dest: str | Path) -> str:
        """Write its files to a folder, and return the folder's path: `sdk.models()["digits"].champion().download("digits")`.

        The digest of each file is checked. The folder appears complete or not at all.

        Args:
            dest: a new or empty folder, or one with the same files, which is left as it is.

        Raises:
            InputError: the folder has other files.
            CorruptObjectError: a file of the version is missing or damaged.
        """
        with self._readable():
            return files.fetch(self.model.store, self.record.manifest, dest)

    def evidence(self) -> Sequence[Evidence]:
        """Return the evaluations by its gate, the newest last: `sdk.models()["digits"].version(3).evidence()`."""
        return evidence.of_version(self.model.store, self.model.name, self.number)

    def damage(self) -> list[str]:
        """Read all its files, and report each missing or damaged one: `sdk.models()["digits"].version(3).damage()`."""
        return files.damage(self.model.store, self.record.manifest)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Add the next step to errors about damaged files."""
        try:
            yield
        except CorruptObjectError as error:
            raise damaged(self.record, [str(error)]) from error


def damaged(record: VersionRecord, sentences: Sequence[str]) -> CorruptObjectError:
    """Return the error for damaged files of a version, with the next step."""
    source = "" if record.source == "model" else f" --path {shlex.quote(record.source)}"
    run, model = shlex.quote(record.run), shlex.quote(record.model)
    return CorruptObjectError(
        f"Version {record.number} of {record.model!r} is damaged: {' '.join(sentences)} Nothing was changed. Next: podlift "
        f"models add {run} --model {model}{source}, which stores its files again; or use another version."
    )


class Judge(Protocol):
    """Evaluates with the project's code, which this room does not load."""

    def __call__(self, version: ModelVersion, *, promote: bool) -> Evidence: ...


Pairs = Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True, kw_only=True)
class VersionDiff:
    """The differences between two versions."""

    before: int
    after: int
    metrics: Pairs  # of either, None where one has none
    added: tuple[str, ...]  # files
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    code: bool  # whether it differs
    args: bool
    data: tuple[str, ...]  # inputs that differ
    runs: tuple[str, str]
    warm_start: tuple[int, int] = (0, 0)  # the version that gave each its first weights, 0 for none
    measured: Pairs = field(default_factory=dict)  # by the gate, if it has judged both on the same data
    damage: str = ""  # why the gate's numbers cannot be read

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        values = any(before != after for before, after in (*self.metrics.values(), self.warm_start))
        return values or any((self.added, self.removed, self.changed, self.code, self.args, self.data))


class Model:
    """A registered model: `sdk.models()["digits"].versions()`.

    Attributes:
        name: its name.
        root: the root in which it is registered.
    """

    def __init__(
        self, root: str, name: str, clock: Clock | None = None, store: Store | None = None, judge: Judge | None = None
    ) -> None:
        self.root, self.name, self._judge = root, name, judge
        self.store = store or open_store(RootPaths(root).models)
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, root={self.root!r})"

    def numbers(self) -> list[int]:
        """Return the numbers of its versions, the oldest first: `sdk.models()["digits"].numbers()[-1]`."""
        matches = (VERSION_KEY.fullmatch(stat.key) for stat in self.store.list(f"records/{self.name}/versions/"))
        return sorted(int(match[2]) for match in matches if match)

    def versions(self) -> list[ModelVersion]:
        """Return its versions, the oldest first: `[version.metrics for version in sdk.models()["digits"].versions()]`."""
        return self._versions(self.numbers())

    def version(self, which: int | str = "champion") -> ModelVersion:
        """Return one version: `sdk.models()["digits"].version("latest")`.

        Args:
            which: its number, from 1; "champion" or "latest".

        Raises:
            InputError: there is no such version.
        """
        # Before the list, which then has its number: a version is registered before it is promoted.
        champion = self.record()[0].champion if which == "champion" else 0
        numbers = self.numbers()
        if which == "champion":
            number = champion
            if not number:
                raise InputError(
                    f"The model {self.name!r} has no champion. It has {_listed(numbers)}. Next: podlift models promote "
                    f"{self.name} {numbers[-1] if numbers else 'VERSION'}."
                )
        elif which == "latest" and numbers:
            number = numbers[-1]
        else:
            number = int(which) if str(which).isdecimal() else 0
        if number not in numbers:
            raise InputError(
                f"The model {self.name!r} has no such version. Received: {which!r}. It has {_listed(numbers)}; champion and "
                "latest are names for two of them."
            )
        return self._version(number)

    def champion(self) -> ModelVersion:
        """Return the champion: `sdk.models()["digits"].champion().number`; InputError if there is none."""
        return self.version("champion")

    def history(self) -> Sequence[Move]:
        """Return every change of the champion, the oldest first: `[move.note for move in sdk.models()["digits"].history()]`."""
        return self.record()[0].moves

    def state(
        self, version: ModelVersion, record: ChampionRecord | None = None, evaluations: Sequence[Evidence] | None = None
    ) -> str:
        """Return the state of a version: `model = sdk.models()["digits"]; model.state(model.version(3))`.

        It is "champion", "awaits approval", "was champion" or "registered".

        Args:
            version: a version of this model.
            record: the moves of the champion, if they were read before.
            evaluations: of the version by its gate, if they were read before.
        """
        record = self.record()[0] if record is None else record
        if record.champion == version.number:
            return "champion"
        if any(move.champion == version.number for move in record.moves):
            return "was champion"
        asks = self._champion_to_replace(version, evaluations) == record.champion
        return "awaits approval" if asks else "registered"

    def promote(
        self, which: int | str, *, expect: int | None = None, as_compared: bool = False, note: str = ""
    ) -> ModelVersion:
        """Make a version the champion, and return it: `sdk.models()["digits"].promote(3, note="better recall")`.

        Promoting the champion changes nothing. Two promotions at the same time cannot both win: the second one is refused.

        Args:
            which: its number, "champion" or "latest".
            expect: the champion that it is to replace, 0 for none; by default the one at the time of the call.
            as_compared: the version awaits an approval, of its gate or by `ask`, and replaces the champion of its comparison.
            note: why, for the history.

        Raises:
            PodliftError: there is no such version, it is damaged, it awaits no approval, or another process has moved the
                champion.
        """
        version = self.version(which)
        return self._move(version, "promote", note, self._compared_with(version) if as_compared else expect)

    def _compared_with(self, version: ModelVersion) -> int:
        champion = self._champion_to_replace(version)
        if champion is None:
            asking = [version.number for version in self.versions() if self.state(version) == "awaits approval"]
            raise InputError(
                f"Version {version.number} of {self.name!r} does not await an approval. "
                f"{f'Those that do: {_listed(asking)}.' if asking else 'No version does.'} Next: podlift models promote "
                f"{self.name} {version.number}."
            )
        return champion

    def evaluate(self, which: int | str = "latest", *, promote: bool = False) -> Evidence:
        """Let the gate judge a version on this machine: `sdk.models()["digits"].evaluate(3).outcome`.

        The gate comes from the project in the current folder, else from the version's run. Its function is called for the
        version and the champion. Without `promote`, nothing is written or promoted.

        Args:
            which: its number, "champion" or "latest".
            promote: store the evidence, and promote the version if the gate says so.

        Raises:
            InputError: there is no such version or no gate, or its code cannot be found.
        """
        if self._judge is None:
            raise InputError(f"{self!r} cannot evaluate. Next: sdk.models({self.root!r})[{self.name!r}].evaluate(...).")
        return self._judge(self.version(which), promote=promote)

    def rollback(self, *, expect: int | None = None, note: str = "") -> ModelVersion:
        """Make the previous champion the champion again: `sdk.models()["digits"].rollback(note="drift").number`.

        A second rollback goes one step further back.

        Args:
            expect: the champion that it is to replace; by default the one at the time of the call.
            note: why, for the history.

        Raises:
            PodliftError: there is no previous champion, it is damaged, or another process has moved the champion.
        """
        while True:
            record, generation = self.record()
            if expect is not None and record.champion != expect:
                raise self._moved(record, expect)
            version = self._version(self._previous(record))
            self._check(version)
            if self._swap(record, generation, version, "rollback", note):
                return version

    def remove(self, which: int | str, *, force: bool = False) -> removal.Removal:
        """Remove a version, and return the size of its own files: `sdk.models()["digits"].remove(1).size_bytes`.

        `podlift remove` deletes the files later, unless another version has them. The number is not used again.

        Args:
            which: its number or "latest".
            force: also a version that a rollback could return to.

        Raises:
            InputError: there is no such version, it is the champion, or a rollback could return to it. Nothing was changed.
        """
        return removal.remove(self, self.version(which), force=force)

    def diff(self, before: int | str, after: int | str = "champion") -> VersionDiff:
        """Return the differences between two versions: `sdk.models()["digits"].diff(3).metrics["accuracy"]`.

        Args:
            before: number of a version, "champion" or "latest".
            after: as `before`.

        Raises:
            InputError: there is no such version.
        """
        one, other = self.version(before), self.version(after)
        old, new = ({file.path: file.parts for file in version.files()} for version in (one, other))
        a, b = one.record, other.record
        measured, damage = _measured(one, other)
        return VersionDiff(
            before=a.number,
            after=b.number,
            metrics=_paired(a.metrics, b.metrics),
            added=tuple(sorted({*new} - {*old})),
            removed=tuple(sorted({*old} - {*new})),
            changed=tuple(sorted(path for path in {*old} & {*new} if old[path] != new[path])),
            code=a.bundle != b.bundle,
            args=(a.program, a.args) != (b.program, b.args),
            data=tuple(name for name in sorted({*a.data, *b.data}) if a.data.get(name) != b.data.get(name)),
            runs=(a.run, b.run),
            warm_start=(a.began_with, b.began_with),
            measured=measured,
            damage=damage,
        )

    def add(self, candidate: lineage.Candidate, *, ask: str = "") -> ModelVersion:
        """Store the files of a run's model as a new version; the same files of the same run stay one version."""
        stored = files.add(self.store, candidate.folder)
        while True:
            numbers, champion = self.numbers(), self.record()[0]  # in this order: a removal records the number first
            for version in self._versions([at for at in numbers if at not in champion.removed]):
                if (version.record.run, version.record.manifest) == (candidate.lineage.run, stored.digest):
                    return version
            record = VersionRecord(
                **vars(candidate.lineage),
                model=self.name,
                number=max([*numbers, *champion.removed], default=0) + 1,
                manifest=stored.digest,
                files=len(stored.files),
                size_bytes=stored.size_bytes,
                parent=champion.champion,
                ask=ask,
                created=self._clock.now(),
                by=account(),
            )
            # Another version may have taken the number, or the reply may have been lost: both are found by the next look.
            if create(self.store, version_key(self.name, record.number), encoded(record)):
                return ModelVersion(self, record)

    def of_run(self, run_id: str, source: str) -> ModelVersion | None:
        """Return the newest version that a successful run registered from this place of its outputs, None if there is none."""
        about = (run_id, source, State.SUCCEEDED.value)
        versions = [
            version
            for version in self.versions()
            if (version.record.run, version.record.source, version.record.state) == about
        ]
        return versions[-1] if versions else None

    def record(self) -> tuple[ChampionRecord, str | None]:
        """Return the moves of the champion, and the generation of the object that holds them, None if there is none."""
        key = champion_key(self.name)
        try:
            data, generation = current(self.store, key)
            return decoded(ChampionRecord, data, f"{self.store.url}/{key}"), generation
        except MissingError:
            return ChampionRecord(), None
        except CorruptObjectError as error:
            raise CorruptObjectError(
                f"The champion of {self.name!r} is unknown: {error} Nothing was changed. Next: remove that object, and "
                f"podlift models promote {self.name} VERSION, which begins a new history."
            ) from error

    def _version(self, number: int) -> ModelVersion:
        return ModelVersion(self, read_version(self, number))

    def _versions(self, numbers: Sequence[int]) -> list[ModelVersion]:
        """Return the versions of these numbers, without any that another process removes meanwhile."""
        return [version for version in in_parallel(self._unless_removed, numbers) if version is not None]

    def _unless_removed(self, number: int) -> ModelVersion | None:
        try:
            return self._version(number)
        except CorruptObjectError:
            if number in self.record()[0].removed:
                return None
            raise

    def _champion_to_replace(self, version: ModelVersion, evaluations: Sequence[Evidence] | None = None) -> int | None:
        """Return the champion that an approval of a version would replace, 0 for none; None if it awaits no approval."""
        evaluations = version.evidence() if evaluations is None else evaluations
        if evaluations:
            return evaluations[-1].champion if evaluations[-1].outcome == "ask" else None
        return version.record.parent if version.record.ask else None

    def _previous(self, record: ChampionRecord) -> int:
        """Return the number of the version to roll back to; InputError if there is none."""
        if not record.predecessors:
            why = "There is none" if not record.champion else f"Version {record.champion} is the first one"
            raise InputError(f"The champion of {self.name!r} cannot be rolled back. {why}. Nothing was changed.")
        return record.predecessors[-1]

    def _move(self, version: ModelVersion, cause: Cause, note: str, expect: int | None) -> ModelVersion:
        while True:
            record, generation = self.record()
            if record.champion == version.number:
                return version
            if expect is not None and record.champion != expect:
                raise self._moved(record, expect)
            if version.number in record.removed:
                raise InputError(
                    f"Version {version.number} of {self.name!r} was removed. Nothing was changed. Next: podlift models status "
                    f"{self.name}."
                )
            self._check(version)
            if self._swap(record, generation, version, cause, note):
                return version

    def _check(self, version: ModelVersion) -> None:
        if damage := version.damage():
            raise damaged(version.record, damage)

    def _swap(
        self, record: ChampionRecord, generation: str | None, version: ModelVersion, cause: Cause, note: str
    ) -> bool:
        """Move the champion; False if another process has removed a version meanwhile, and the record is to be read again."""
        move = Move(
            id=uuid.uuid4().hex,
            champion=version.number,
            before=record.champion,
            cause=cause,
            note=note,
            by=account(),
            time=self._clock.now(),
        )
        data = encoded(replace(record, moves=(*record.moves, move)))
        try:
            self.store.swap(champion_key(self.name), [data], expected=generation)
        except StoreError as error:
            # The reply may have been lost: the repeated request then finds the object changed by the first one.
            now = ChampionRecord()
            with suppress(StoreError):
                now = self.record()[0]
            if move in now.moves:
                return True
            if not isinstance(error, ConflictError):
                raise
            if now.champion != record.champion:
                raise self._moved(now, record.champion) from None
            return False
        return True

    def _moved(self, record: ChampionRecord, expected: int) -> InputError:
        last = record.moves[-1] if record.moves else None
        now = f"version {record.champion}" if record.champion else "none"
        who = f" {last.by} moved it at {shown_time(last.time)} ({last.cause})." if last else ""
        was = f"version {expected}" if expected else "none"
        return InputError(
            f"The champion of {self.name!r} is not the expected one. Expected: {was}. It is {now}.{who} Nothing was changed. "
            f"Next: compare with podlift diff {self.name}:champion {self.name}:VERSION, then promote again."
        )


def _measured(one: ModelVersion, other: ModelVersion) -> tuple[Pairs, str]:
    """Return the gate's numbers, none if the last evaluations differ in function or data, and why they cannot be read."""
    try:
        last = [version.evidence()[-1:] for version in (one, other)]
    except CorruptObjectError as error:
        return {}, str(error)
    about = [
        [(each.gate.evaluate, each.data.location, each.data.digest) for each in evaluations] for evaluations in last
    ]
    return (_paired(last[0][0].metrics, last[1][0].metrics) if all(last) and about[0] == about[1] else {}), ""


def _paired(a: Mapping[str, float | None], b: Mapping[str, float | None]) -> Pairs:
    return {name: (a.get(name), b.get(name)) for name in sorted({*a, *b})}


def read_version(model: Model, number: int) -> VersionRecord:
    """Return the record of a version; CorruptObjectError if it is damaged."""
    key = version_key(model.name, number)
    try:
        return decoded(VersionRecord, bytes(model.store.get(key)), f"{model.store.url}/{key}")
    except (CorruptObjectError, MissingError) as error:
        raise CorruptObjectError(
            f"The record of version {number} of {model.name!r} is damaged: {error} Nothing was changed. Next: remove that "
            "object, and register its run again: podlift models add RUN."
        ) from error


def _listed(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no versions"
    texts = [str(number) for number in (numbers if len(numbers) <= 8 else [*numbers[:3], *numbers[-4:]])]
    gap = ["..."] if len(numbers) > 8 else []
    return f"{'version' if len(numbers) == 1 else 'versions'} {', '.join([*texts[:3], *gap, *texts[3:]])}"
