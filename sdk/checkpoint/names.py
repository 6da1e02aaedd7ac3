"""The names of all objects of a store, made and taken apart here only."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..storage.checksums import crc32c

LEASE = "LEASE.json"
OPENINGS = "openings/"
COMMITS = "commits/"
DATA = "data/"
PINS = "pins/"
QUARANTINE = "quarantine/"

_COMMIT = re.compile(r"commits/e(\d{6,})/(\d{12,})-(\d{6,})\.json")
_DATA = re.compile(r"(data/e(\d{6,})/(\d{12,})-[0-9a-f]{8}/)[^/]+")


class Place(NamedTuple):
    """Where a checkpoint stands in the order of all checkpoints of a store."""

    epoch: int
    step: int
    serial: int


def opening(attempt: int) -> str:
    """The agreement of one attempt."""
    return f"{OPENINGS}a{attempt:04d}.json"


def commit(place: Place) -> str:
    """The manifest, whose creation is the commit."""
    return f"{COMMITS}e{place.epoch:06d}/{place.step:012d}-{place.serial:06d}.json"


def place_of(key: str) -> Place | None:
    """Return the place of a commit; None for a name that is no commit's."""
    found = _COMMIT.fullmatch(key)
    place = Place(int(found[1]), int(found[2]), int(found[3])) if found else None
    return place if place and commit(place) == key else None


def folder(place: Place, nonce: str) -> str:
    """Where all tasks put the bytes of one checkpoint: each of them computes the same name, with nothing to agree on.

    Args:
        place: of the checkpoint.
        nonce: of the opening, which is the same in all tasks of an attempt and in no other attempt.
    """
    mark = crc32c([f"{nonce}/{place.step}/{place.serial}".encode()])
    return f"{DATA}e{place.epoch:06d}/{place.step:012d}-{mark:08x}/"


def folder_of(key: str) -> tuple[str, int, int] | None:
    """Return the folder, epoch and step of a data object; None for a name that is no data object's."""
    found = _DATA.fullmatch(key)
    return (found[1], int(found[2]), int(found[3])) if found else None


def packed(folder: str, rank: int, index: int) -> str:
    """The bytes of one task, in several objects."""
    return f"{folder}t{rank:05d}-{index:05d}.bin"


def receipt(folder: str, rank: int) -> str:
    """What one task says to rank 0 about its bytes."""
    return f"{folder}t{rank:05d}.receipt.json"


def arrival(epoch: int, step: int, nonce: str, rank: int) -> str:
    """The mark of a task that it has come to a step with all that it needs to save; removed as a folder of no commit.

    Args:
        epoch: of the attempt.
        step: training steps so far.
        nonce: of the opening.
        rank: of the task.
    """
    mark = crc32c([f"{nonce}/{step}/arrived".encode()])
    return f"{DATA}e{epoch:06d}/{step:012d}-{mark:08x}/t{rank:05d}.arrived"


def pin(name: str) -> str:
    """The mark that keeps a checkpoint."""
    return f"{PINS}{name}.json"


def note(commit_key: str) -> str:
    """The mark that a checkpoint does not verify."""
    return QUARANTINE + commit_key.removeprefix(COMMITS).removesuffix(".json").replace("/", "-") + ".json"


def folder_is_of(folder: str, place: Place) -> bool:
    """True for the data folders of a place's epoch and step, whatever attempt of it."""
    return folder.startswith(f"{DATA}e{place.epoch:06d}/{place.step:012d}-")
