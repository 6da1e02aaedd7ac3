"""Reads the metric records of a task. Long files are kept in memory: they only grow, and a watching client reads them often."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO, NamedTuple

from ..errors import CorruptRunError

# The files that are remembered, at most, and the records that one of them has, at least.
_FILES, _RECORDS = 4, 500
# The bytes before the unread part: if they have changed, the file is another one.
_TAIL = 256

# The fields of a row that are no metrics.
_FIELDS = ("attempt", "time", "step", "epoch")

MetricRecord = dict[str, Any]


class _ReadPart(NamedTuple):
    inode: int
    offset: int  # of the unread part
    tail: bytes  # the bytes before it
    records: list[MetricRecord]


_read_parts: dict[str, _ReadPart] = {}


def read_metrics(path: str) -> list[MetricRecord]:
    """Return the metric records of one task, without a last line that is still being written. They must not be changed."""
    try:
        with open(path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            part = _before(file, path, inode)
            read = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CorruptRunError(f"The metrics file {path!r} cannot be read: {error}.") from None
    whole = read[: read.rfind(b"\n") + 1]
    records = part.records + _parsed(whole, path, len(part.records))
    if len(records) >= _RECORDS and whole:
        _read_parts.pop(path, None)
        _read_parts[path] = _ReadPart(inode, part.offset + len(whole), (part.tail + whole)[-_TAIL:], records)
        for old in list(_read_parts)[:-_FILES]:
            _read_parts.pop(old, None)
    return list(records)


def flat(record: MetricRecord) -> dict[str, Any]:
    """Return a record as one row."""
    # Names of the program's own never replace a field, nor each other.
    metrics = {f"{name}_" if name.rstrip("_") in _FIELDS else name: value for name, value in record["metrics"].items()}
    return {**{name: record.get(name) for name in _FIELDS}, **metrics}


def _before(file: BinaryIO, path: str, inode: int) -> _ReadPart:
    """Return the known part of a file, and move the file to its unread part."""
    part = _read_parts.get(path)
    if part is not None and part.inode == inode:
        file.seek(part.offset - len(part.tail))
        if file.read(len(part.tail)) == part.tail:
            return part
    file.seek(0)
    return _ReadPart(inode, 0, b"", [])


def _parsed(lines: bytes, path: str, before: int) -> list[MetricRecord]:
    records = []
    for number, line in enumerate(lines.split(b"\n")[:-1], before + 1):
        try:
            record = json.loads(line)
            if not isinstance(record["metrics"], dict):
                raise TypeError("no metrics")
            records.append(record)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CorruptRunError(f"The metrics file {path!r} is damaged in line {number}: {error}.") from None
    return records
