"""Records that a name finds below a root: schedules, and sweeps. Each names the plan of its runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Generic, TypeVar

from .. import ids
from ..errors import ConflictError, CorruptRunError, InputError, MissingError, nearest
from ..job.plan import Plan
from ..job.wire import decode, parsed
from ..storage import cache, small_files
from ..storage.registry import open_store
from ..storage.store import create, current

_R = TypeVar("_R")
_T = TypeVar("_T")
_LONGEST_ROOT = 4096


class NamedRecords(Generic[_R]):
    """The records of one kind below a root, in a Store: `Book("~/.podlift").read("weekly")`.

    Args:
        root: the root, for messages and plans.
        url: where the Store is.
        kind: the dataclass of a record, with `spec.name`, and in `plan` the key of its plan.
        noun: the word of messages and of the verb: "schedule".
    """

    def __init__(self, root: str, url: str, kind: type[_R], noun: str) -> None:
        self.root, self.store, self._kind, self.noun = root, open_store(url), kind, noun

    def names(self) -> list[str]:
        return [*self.generations()]

    def generations(self) -> dict[str, str]:
        """Return the generation of each record by its name: an equal one means that the record has not changed."""
        stats = [stat for stat in self.store.list("specs/") if stat.key.endswith(".json")]
        return {stat.key[len("specs/") : -len(".json")]: stat.generation for stat in stats}

    def read(self, name: str) -> _R:
        """Return a record, or raise InputError with the nearest name."""
        return self._read(name)[0]

    def find(self, name: str) -> _R | None:
        """Return a record; None if there is none of the name."""
        stored = self._stored(name)
        return stored[0] if stored else None

    def add(self, record: Any) -> bool:
        """Write a new record; False if there is one of its name."""
        return create(self.store, _key(record.spec.name), encoded(record))

    def change(self, name: str, **fields: object) -> _R:
        """Change fields of a record, whatever other processes change at the same time."""
        while True:
            before, generation = self._read(name)
            after: _R = replace(before, **fields)  # type: ignore[type-var]
            with suppress(ConflictError):
                self.store.swap(_key(name), [encoded(after)], expected=generation)
                return after

    def put_plan(self, name: str, plan: Plan) -> str:
        """Store a plan and return its key."""
        key = plan_key(name, plan)
        create(self.store, key, plan.to_json().encode())
        return key

    def plan(self, record: Any) -> Plan:
        """Return the plan of its runs."""
        data = bytes(self.store.get(record.plan))
        return Plan.from_json(data, f"{self.store.url}/{record.plan}", root=self.root)

    def _read(self, name: str) -> tuple[_R, str]:
        if stored := self._stored(name):
            return stored
        names = self.names()
        near = nearest(name, names) if names else f"There is none. Next: podlift {self.noun} create."
        raise InputError(f"No such {self.noun} below {self.root!r}. Received: {name!r}. {near}")

    def _stored(self, name: str) -> tuple[_R, str] | None:
        try:
            data, generation = current(self.store, _key(name))
        except (MissingError, InputError):
            return None
        return self.decoded(self._kind, data, _key(name)), generation

    def decoded(self, kind: type[_T], data: bytes, key: str) -> _T:
        """Return the record in these bytes; CorruptRunError with its key if they hold none."""
        try:
            return decode(kind, parsed(data))
        except (ValueError, TypeError) as error:
            raise self.damaged(key, error) from None

    def damaged(self, key: str, error: Exception) -> CorruptRunError:
        return CorruptRunError(f"The record {key!r} of a {self.noun} is damaged: {error}. Nothing was changed.")


def plan_key(name: str, plan: Plan) -> str:
    return f"plans/{name}/{ids.digest_of(plan.to_json().encode())}"


def encoded(record: Any) -> bytes:
    """Return a dataclass as JSON."""
    return json.dumps(asdict(record)).encode()


def _key(name: str) -> str:
    return f"specs/{name}.json"


def remember(noun: str, names: Iterable[str], root: str) -> None:
    """Note the names of records in a bucket, for completion and for hints when a name is not found."""
    folder = cache.seen(cache.cache_folder(os.environ), noun)
    for name in names:
        # A name with a slash, which a bucket may hold, must not hide the others.
        with suppress(OSError, RuntimeError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(root)


def remembered(noun: str) -> dict[str, str]:
    """Return the roots of the records in buckets that this machine has used, by their names."""
    roots = dict[str, str]()
    with suppress(OSError, RuntimeError):
        for path in sorted(cache.seen(cache.cache_folder(os.environ), noun).iterdir()):
            # A damaged file must not hide the others.
            with suppress(OSError, ValueError):
                text = small_files.read(path, _LONGEST_ROOT).decode()
                roots |= {path.name: text} if text.isprintable() else {}
    return roots


def forget(noun: str, name: str) -> None:
    with suppress(OSError, RuntimeError):
        (cache.seen(cache.cache_folder(os.environ), noun) / name).unlink()
