"""Reads requirements as pip does: files with comments, options, continued lines, and files that name files."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from ...errors import nearest
from ..paths import usable
from .gathering import Gathering, shown, written

_COMMENT = re.compile(r"(^|\s)#.*$")
_HASH = re.compile(r"[a-z0-9]+:[0-9a-f]+")
_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_LONG = {
    "-i": "--index-url", "--pypi-url": "--index-url", "-f": "--find-links", "-r": "--requirement", "-c": "--constraint",
    "-e": "--editable",
}  # fmt: skip
_WITH_VALUE = ("--extra-index-url", "--no-binary", "--only-binary", "--trusted-host", *_LONG, *set(_LONG.values()))
_ALONE = ("--no-index", "--pre", "--prefer-binary", "--require-hashes")
_KNOWN = sorted(name for name in (*_WITH_VALUE, *_ALONE) if name.startswith("--"))


def read_file(gathering: Gathering, path: Path, *, constraints: bool = False, seen: tuple[Path, ...] = ()) -> None:
    """Take what a requirements file asks for.

    Args:
        gathering: takes it, and the mistakes.
        path: the file.
        constraints: True where the file limits versions and asks for nothing.
        seen: the files that lead here.
    """
    label = name_of(gathering, path)
    if path in seen:
        gathering.refuse(label, f"it names itself, by way of {', '.join(name_of(gathering, file) for file in seen)}.")
        return
    try:
        text = _decoded(path.read_bytes())
    except OSError as error:
        gathering.refuse(label, f"the file cannot be read: {error.strerror}.")
    except UnicodeError:
        gathering.refuse(label, "the file is no text in UTF-8. Next: save it as UTF-8.")
    else:
        reader = _Reader(gathering, path.parent, constraints, (*seen, path))
        for number, line in _joined(text.splitlines()):
            reader.take(line, f"{label}:{number}")


def read_list(gathering: Gathering, lines: Iterable[str]) -> None:
    """Take the requirements of a list; each item is what a line of a file may be."""
    reader = _Reader(gathering, gathering.project, False, ())
    for number, line in enumerate(lines):
        if "\n" in line or not line.strip():
            gathering.refuse(f"requirements[{number}]", f"an item is one requirement. Received: {shown(line)!r}.")
        else:
            reader.take(line, f"requirements[{number}]")


def name_of(gathering: Gathering, path: Path) -> str:
    """Return a file's name for a sentence: below the project where it lies there."""
    project = gathering.project
    return path.relative_to(project).as_posix() if path.is_relative_to(project) else str(path)


def find_links(gathering: Gathering, text: str, where: str, base: Path) -> None:
    """Take a place with wheels: a URL, or a folder of the project."""
    if "://" in text and not text.startswith("file:"):
        if gathering.url(text, where):
            gathering.option("--find-links", text)
        return
    path = text.removeprefix("file://")
    place = next((place for place in (base / path, gathering.project / path) if place.exists()), None)
    if place is None or not place.resolve().is_relative_to(gathering.project):
        gathering.refuse(where, f"--find-links names no folder of the project. Received: {shown(text)!r}.")
    else:
        gathering.option("--find-links", shlex.quote(str(place.resolve())))


class _Reader:
    """Reads line by line."""

    def __init__(self, gathering: Gathering, base: Path, constraints: bool, seen: tuple[Path, ...]) -> None:
        self._gathering = gathering
        self._base = base
        self._constraints = constraints
        self._seen = seen

    def take(self, line: str, where: str) -> None:
        """Take one line, without its line break."""
        line = _COMMENT.sub("", line).strip()
        if not line or self._gathering.is_unfit(line, where):
            return
        words = line.split(" ")
        start = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
        try:
            given = _PARSER.parse_args(shlex.split(" ".join(words[start:])))
        except ValueError as error:
            self._gathering.refuse(where, f"{error} Received: {shown(line)!r}.")
            return
        text = " ".join(words[:start]).strip()
        bad = [value for value in given.hash if not _HASH.fullmatch(value)]
        if bad:
            self._gathering.refuse(where, f"a hash is such as 'sha256:1a2b...'. Received: {shown(bad[0])!r}.")
        elif given.hash and not text:
            self._gathering.refuse(where, "a --hash belongs behind a requirement, in the same line.")
        elif given.options and text:
            self._gathering.refuse(where, f"{given.options[0][0]} has a line of its own. Received: {shown(line)!r}.")
        elif text:
            self._requirement(text, where, given.hash)
        for name, value in given.options:
            with self._gathering.problems.collect(), usable(f"{where}: {name}", shown(value)):
                self._option(name, value, where)

    def _requirement(self, text: str, where: str, hashes: list[str]) -> None:
        if not self._constraints:
            self._gathering.read(text, where, base=self._base, hashes=hashes)
            return
        for wanted in self._gathering.understand(text, where, base=self._base):
            if wanted.extras:
                self._gathering.refuse(where, f"a constraint has no extras. Received: {written(wanted)!r}.")
            else:
                self._gathering.constraints.append(wanted)

    def _option(self, name: str, value: str, where: str) -> None:
        if name == "--editable":
            self._requirement(value, where, [])
        elif name == "--find-links":
            find_links(self._gathering, value, where, self._base)
        elif name not in ("--requirement", "--constraint"):
            if "://" not in value or self._gathering.url(value, where):
                self._gathering.option(name, value)
        elif "://" in value:
            self._gathering.refuse(where, f"{name} reads files of this machine only: a URL may change. Copy it here.")
        else:
            # pip looks beside the file that names it.
            constraints = self._constraints or name == "--constraint"
            read_file(self._gathering, (self._base / value).resolve(), constraints=constraints, seen=self._seen)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (-[^\s=]*)", message)
        if unknown:
            known = nearest(unknown[1], _KNOWN)
            raise ValueError(f"podlift does not take pip's option {unknown[1]}: it says what, from where. {known}")
        raise ValueError(f"pip's options are written otherwise: {shown(message)}.")


class _Collect(argparse.Action):
    """Keeps options under their long names, in the order in which they are given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        name = _LONG.get(option_string, option_string)
        namespace.options = [*namespace.options, (name, "" if self.nargs == 0 else values)]


def _parser() -> _Parser:
    parser = _Parser(prog="pip", add_help=False, allow_abbrev=False)
    parser.add_argument("--hash", action="append", default=[])
    parser.add_argument(*_WITH_VALUE, action=_Collect, dest="options", default=[])
    parser.add_argument(*_ALONE, action=_Collect, dest="options", default=[], nargs=0)
    return parser


_PARSER = _parser()


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    return data.decode(encoding)


def _joined(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers; one that ends in a backslash goes on in the next."""
    whole, start = "", 0
    for number, line in enumerate(lines, start=1):
        start = start or number
        comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not comment:
            whole += line[:-1]
            continue
        # A comment ends what was continued: behind a blank, so that it is seen as one.
        yield start, whole + (" " if comment else "") + line
        whole, start = "", 0
    if whole:
        yield start, whole
