"""The names of all objects of a store. Only this module builds and parses them."""

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

# Numbers in a manifest are below 2**60, and so have at most 19 digits.
_COMMIT = re.compile(r"commits/e([0-9]{6,19})/([0-9]{12,19})-([0-9]{6,19})\.json")
_DATA = re.compile(r"(data/e([0-9]{6,19})/([0-9]{12,19})-[0-9a-f]{8}/)[^/]+")


class CheckpointId(NamedTuple):
    """A checkpoint; they sort in the order of commits."""

    epoch: int
    step: int
    serial: int


def opening(attempt: int) -> str:
    """The object in which an attempt's tasks agree."""
    return f"{OPENINGS}a{attempt:04d}.json"


def commit(checkpoint_id: CheckpointId) -> str:
    """The manifest; its creation is the commit."""
    return f"{COMMITS}e{checkpoint_id.epoch:06d}/{checkpoint_id.step:012d}-{checkpoint_id.serial:06d}.json"


def parse_commit(key: str) -> CheckpointId | None:
    """Return the checkpoint of a commit; None for any other name."""
    match = _COMMIT.fullmatch(key)
    checkpoint_id = CheckpointId(int(match[1]), int(match[2]), int(match[3])) if match else None
    return checkpoint_id if checkpoint_id and commit(checkpoint_id) == key else None


def folder(checkpoint_id: CheckpointId, nonce: str) -> str:
    """The folder of one checkpoint's bytes; every task of an attempt computes the same one from the opening's nonce."""
    mark = crc32c([f"{nonce}/{checkpoint_id.step}/{checkpoint_id.serial}".encode()])
    return f"{DATA}e{checkpoint_id.epoch:06d}/{checkpoint_id.step:012d}-{mark:08x}/"


def parse_data_key(key: str) -> tuple[str, int, int] | None:
    """Return the folder, epoch and step of a data object; None for any other name."""
    match = _DATA.fullmatch(key)
    return (match[1], int(match[2]), int(match[3])) if match else None


def packed(folder: str, rank: int, index: int) -> str:
    """One of the objects with the bytes of one task."""
    return f"{folder}t{rank:05d}-{index:05d}.bin"


def receipt(folder: str, rank: int) -> str:
    """A task's report to rank 0 about its bytes."""
    return f"{folder}t{rank:05d}.receipt.json"


def arrival(epoch: int, step: int, nonce: str, rank: int) -> str:
    """The mark of a task that is ready to save after a step; removed like a folder of no commit."""
    mark = crc32c([f"{nonce}/{step}/arrived".encode()])
    return f"{DATA}e{epoch:06d}/{step:012d}-{mark:08x}/t{rank:05d}.arrived"


def pin(name: str) -> str:
    return f"{PINS}{name}.json"


def note(commit_key: str) -> str:
    """The mark that a checkpoint failed verification."""
    return QUARANTINE + commit_key.removeprefix(COMMITS).removesuffix(".json").replace("/", "-") + ".json"


def folder_is_of(folder: str, checkpoint_id: CheckpointId) -> bool:
    """True for the data folders of a checkpoint's epoch and step, of whichever attempt."""
    return folder.startswith(f"{DATA}e{checkpoint_id.epoch:06d}/{checkpoint_id.step:012d}-")
