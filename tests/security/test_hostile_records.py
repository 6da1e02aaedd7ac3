"""Records of models and schedules that somebody else has written: each verb that reads them ends with a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import hostile
import pytest
from registered_models import register
from support import full_only, needs

from sdk.cli import app
from sdk.storage.posix_store import PosixStore

needs("cronsim")
# In the place of any value of a record.
SCREEN = f"x\n{hostile.TERMINAL['screen']}"
ODD = (None, True, -1, 10**30, 1e308, float("nan"), "", "../..", SCREEN, [], {}, [[]], {"a": 1})


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = app.run(list(words))
    found = capsys.readouterr()
    return code, found.out + found.err


def is_told(code: int, said: str) -> bool:
    """True unless the verb broke, or a terminal would obey its output."""
    broken = code not in (0, 1, 2, 3) or "internal error" in said or "Traceback" in said
    return not broken and not hostile.FORBIDDEN.search(said)


def mutants(value: Any) -> Iterator[Any]:
    """Yield copies of a value of JSON in which one thing is something else, or is missing."""

    def places(inner: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        items = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        for key, item in items:
            yield (*path, key)
            yield from places(item, (*path, key))

    for path in places(value, ()):
        for odd in (*ODD, ...):
            made = copy.deepcopy(value)
            inner = made
            for key in path[:-1]:
                inner = inner[key]
            if odd is ...:
                del inner[path[-1]]
            else:
                inner[path[-1]] = odd
            yield made


def broken(store: PosixStore, key: str, every: int, verbs: list[tuple[str, ...]], capsys: Any) -> list[str]:
    """Write hostile objects in the place of one, and return the verbs that broke, with their output."""
    before, found = bytes(store.get(key)), []
    values = [json.dumps(each).encode() for each in mutants(json.loads(before))][::every]
    # Most of the shapes are the same to a reader of JSON.
    shapes = list(hostile.JSON.values())[:: 1 + min(every // 20, 4)]
    for data in (*shapes, *values):
        store.delete(key)
        store.put_new(key, [data])
        for words in verbs:
            code, said = shown(capsys, *words)
            if not is_told(code, said):
                found.append(f"{' '.join(words)} with {key} = {data[:300]!r}: {code} {said[-500:]}")
    store.delete(key)
    store.put_new(key, [before])
    return found


MODELS = [
    ("models", "list"),
    ("models", "status", "digits"),
    ("models", "status", "digits", "2"),
    ("diff", "digits:1", "digits:2"),
]


@pytest.mark.parametrize(
    ("key", "every"),
    [
        ("records/digits/champion.json", 60),
        ("records/digits/versions/000002.json", 150),
        full_only("records/digits/champion.json", 3),
        full_only("records/digits/versions/000002.json", 3),
        full_only("manifests", 3),
    ],
)
def test_records_of_models_of_any_shape_are_read_or_refused(root, monkeypatch, capsys, key: str, every: int) -> None:
    monkeypatch.setenv("PODLIFT_ROOT", str(root))
    for text in (b"one", b"two"):
        register(root, "digits", {"model.keras": text, "assets/a.txt": text})
    store = PosixStore(str(root / "models"))
    if key == "manifests":
        key = next(each.key for each in store.list("manifests/"))
    assert broken(store, key, every, MODELS, capsys) == []


SCHEDULES = [("schedule", "list"), ("schedule", "list", "--check"), ("schedule", "status", "weekly")]


@pytest.mark.parametrize(
    ("start", "every"),
    [
        ("specs/", 200),
        ("slots/", 100),
        ("bookings/", 15),
        full_only("specs/", 7),
        full_only("slots/", 5),
        full_only("plans/", 60),
    ],
)
def test_records_of_schedules_of_any_shape_are_read_or_refused(root, write, monkeypatch, capsys, start, every) -> None:
    monkeypatch.setenv("PODLIFT_ROOT", str(root))
    write("train.py", "print(1)")
    words = ("weekly", "train.py", "--cron", "0 3 * * 1", "--when", "older_than(1d)", "--max-cost-usd-per-month", "5")
    assert shown(capsys, "schedule", "create", *words)[0] == 0
    store = PosixStore(str(root / "schedules"))
    (spec,) = (json.loads(bytes(store.get(each.key))) for each in store.list("specs/"))
    place = f"weekly/{spec['id']}"
    slot = (
        b'{"state": "FAILED", "reason": "why", "run": "", "notes": ["a note"], "slot": "2026-11-16T03:00:00+01:00", '
        b'"registered": {"model": "m", "version": 1, "outcome": "asks", "reason": "r"}, '
        b'"taken": 1.7e9, "started": 1.7e9, "ended": 1.7e9, "cost_usd": 1.5}'
    )
    store.put_new(f"slots/{place}/2026-11-16T02/0000Z", [slot])
    store.put_new(f"bookings/{place}/2026-11", [b'{"2026-11-16T02/0000Z": 1.5}'])
    key = next(each.key for each in store.list(start))
    assert broken(store, key, every, SCHEDULES, capsys) == []
