"""The records of a model, beside its files.

    records/<model>/versions/000001.json     one version; written once
    records/<model>/champion.json            the champion and every move that led to it; changed by compare-and-swap

The moves lie in the object that they change, so that it is whole at any moment, and their history has one line.
"""

from __future__ import annotations

import getpass
import json
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeVar

from ..errors import CorruptObjectError
from ..job.payload import InitialWeights
from ..job.wire import decode, parsed

FORMAT = 1
VERSION_KEY = re.compile(r"records/([^/]+)/versions/(\d{6,})\.json")
Cause = Literal["promote", "rollback"]
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class VersionData:
    """An input of the run, as it was when the version was registered."""

    location: str
    digest: str  # of the names, sizes and times of its files; "" if it could not be read
    problem: str = ""  # why it could not


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where the model of a run comes from."""

    run: str  # id
    run_url: str
    state: str  # of the run
    bundle: str  # digest of the code
    program: str
    args: tuple[str, ...] = ()
    source: str  # where the files were in the run's outputs
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    data: Mapping[str, VersionData] = field(default_factory=dict)
    warm_start: InitialWeights | None = None  # the weights that its training began with; None if it asked for none


@dataclass(frozen=True, kw_only=True)
class VersionRecord(Lineage):
    """One version of a model, and where it comes from."""

    model: str
    number: int
    manifest: str  # digest of the list of its files
    files: int
    size_bytes: int
    parent: int = 0  # the champion when it was registered, 0 for none
    ask: str = ""  # why it needs an approval, "" if it needs none
    created: float
    by: str
    version: int = FORMAT

    @property
    def began_with(self) -> int:
        """The version that gave its training the first weights, 0 for none."""
        return self.warm_start.version if self.warm_start else 0


@dataclass(frozen=True, kw_only=True)
class Move:
    """One change of the champion."""

    id: str
    champion: int
    before: int  # 0 for none
    cause: Cause
    note: str = ""
    by: str
    time: float


@dataclass(frozen=True, kw_only=True)
class ChampionRecord:
    """The moves of a model's champion, the oldest first; the last one names it."""

    moves: tuple[Move, ...] = ()
    removed: tuple[int, ...] = ()  # the numbers of removed versions
    version: int = FORMAT

    @property
    def champion(self) -> int:
        """The number of the champion, 0 for none."""
        return self.moves[-1].champion if self.moves else 0

    @property
    def predecessors(self) -> list[int]:
        """Where a rollback can go, the nearest last: moves that were rolled back do not count."""
        line: list[int] = []
        for move in self.moves:
            if move.cause == "rollback":
                last = max((at for at, number in enumerate(line) if number == move.champion), default=-1)
                del line[last + 1 :]
            else:
                line.append(move.champion)
        return [number for number in line[:-1] if number not in self.removed]


def version_key(model: str, number: int) -> str:
    return f"records/{model}/versions/{number:06d}.json"


def champion_key(model: str) -> str:
    return f"records/{model}/champion.json"


def encoded(record: VersionRecord | ChampionRecord) -> bytes:
    return json.dumps(asdict(record), sort_keys=True).encode()


def decoded(kind: type[_T], data: bytes, where: str) -> _T:
    try:
        return decode(kind, parsed(data))
    except (ValueError, TypeError) as error:
        raise CorruptObjectError(f"{where} cannot be read: {error}.") from None


def account() -> str:
    """Return who changes something, for the history."""
    name = "unknown"
    with suppress(OSError, KeyError):
        name = getpass.getuser()
    return f"{name}@{socket.gethostname()}"


def shown_time(moment: float) -> str:
    with suppress(OverflowError, ValueError, OSError):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    return "unknown"
