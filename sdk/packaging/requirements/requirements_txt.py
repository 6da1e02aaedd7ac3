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
from .collector import RequirementsCollector, normalized, redacted

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


def read_file(
    collector: RequirementsCollector, path: Path, *, constraints: bool = False, parents: tuple[Path, ...] = ()
) -> None:
    """Read a requirements file, or a file of constraints; `parents` are the files that lead to it."""
    label = collector.label(path)
    if path in parents:
        collector.refuse(label, f"it includes itself, by way of {', '.join(map(collector.label, parents))}.")
        return
    try:
        text = _decoded(path.read_bytes())
    except OSError as error:
        collector.refuse(label, f"the file cannot be read: {error.strerror}.")
    except UnicodeError:
        collector.refuse(label, "the file is not UTF-8 text. Next: save it as UTF-8.")
    else:
        reader = _LineReader(collector, path.parent, constraints, (*parents, path))
        for number, line in _joined(text.splitlines()):
            reader.read(line, f"{label}:{number}")


def read_list(collector: RequirementsCollector, lines: Iterable[str]) -> None:
    """Read a list; each item is what a line of a file may be."""
    reader = _LineReader(collector, collector.project, False, ())
    for number, line in enumerate(lines):
        if "\n" in line or not line.strip():
            collector.refuse(f"requirements[{number}]", f"an item is one requirement. Received: {redacted(line)!r}.")
        else:
            reader.read(line, f"requirements[{number}]")


def find_links(collector: RequirementsCollector, text: str, where: str, base: Path) -> None:
    """Add a source of wheels: a URL, or a folder of the project."""
    if "://" in text and not text.startswith("file:"):
        if collector.accepts_url(text, where):
            collector.option("--find-links", text)
        return
    path = text.removeprefix("file://")
    found = next((found for found in (base / path, collector.project / path) if found.exists()), None)
    if found is None or not found.resolve().is_relative_to(collector.project):
        collector.refuse(where, f"--find-links does not name a folder of the project. Received: {redacted(text)!r}.")
    else:
        collector.option("--find-links", shlex.quote(str(found.resolve())))


class _LineReader:
    """Reads the lines of one file, or of a list."""

    def __init__(
        self, collector: RequirementsCollector, base: Path, constraints: bool, parents: tuple[Path, ...]
    ) -> None:
        self._collector = collector
        self._base = base
        self._constraints = constraints
        self._parents = parents

    def read(self, line: str, where: str) -> None:
        line = _COMMENT.sub("", line).strip()
        if not line or not self._collector.is_readable(line, where):
            return
        words = line.split(" ")
        start = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
        try:
            given = _PARSER.parse_args(shlex.split(" ".join(words[start:])))
        except ValueError as error:
            self._collector.refuse(where, f"{error} Received: {redacted(line)!r}.")
            return
        text = " ".join(words[:start]).strip()
        bad = [value for value in given.hash if not _HASH.fullmatch(value)]
        if bad:
            self._collector.refuse(where, f"a hash is such as 'sha256:1a2b...'. Received: {redacted(bad[0])!r}.")
        elif given.hash and not text:
            self._collector.refuse(where, "a --hash must follow a requirement in the same line.")
        elif given.options and text:
            option = given.options[0][0]
            self._collector.refuse(where, f"{option} must be in a line of its own. Received: {redacted(line)!r}.")
        elif text:
            self._requirement(text, where, given.hash)
        for name, value in given.options:
            with self._collector.problems.collect(), usable(f"{where}: {name}", redacted(value)):
                self._option(name, value, where)

    def _requirement(self, text: str, where: str, hashes: list[str]) -> None:
        if not self._constraints:
            self._collector.add(text, where, base=self._base, hashes=hashes)
            return
        for constraint in self._collector.parse(text, where, base=self._base):
            if constraint.extras:
                self._collector.refuse(where, f"a constraint has no extras. Received: {normalized(constraint)!r}.")
            else:
                self._collector.constraints.append(constraint)

    def _option(self, name: str, value: str, where: str) -> None:
        if name == "--editable":
            self._requirement(value, where, [])
        elif name == "--find-links":
            find_links(self._collector, value, where, self._base)
        elif name not in ("--requirement", "--constraint"):
            if "://" not in value or self._collector.accepts_url(value, where):
                self._collector.option(name, value)
        elif "://" in value:
            mistake = f"{name} must name a file of this machine: what a URL points to may change. Next: copy it here."
            self._collector.refuse(where, mistake)
        else:
            # Like pip, relative to the file that names it.
            constraints = self._constraints or name == "--constraint"
            read_file(self._collector, (self._base / value).resolve(), constraints=constraints, parents=self._parents)


class _PipOptionParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (-[^\s=]*)", message)
        if unknown:
            known = nearest(unknown[1], _KNOWN)
            raise ValueError(
                f"podlift does not accept pip's option {unknown[1]}, only those that say what to install from where. {known}"
            )
        raise ValueError(f"pip's options cannot be parsed: {redacted(message)}.")


class _AppendOption(argparse.Action):
    """Keeps options under their long names, in the order in which they are given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        name = _LONG.get(option_string, option_string)
        namespace.options = [*namespace.options, (name, "" if self.nargs == 0 else values)]


def _parser() -> _PipOptionParser:
    parser = _PipOptionParser(prog="pip", add_help=False, allow_abbrev=False)
    parser.add_argument("--hash", action="append", default=[])
    parser.add_argument(*_WITH_VALUE, action=_AppendOption, dest="options", default=[])
    parser.add_argument(*_ALONE, action=_AppendOption, dest="options", default=[], nargs=0)
    return parser


_PARSER = _parser()


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    return data.decode(encoding)


def _joined(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers; one that ends in a backslash continues in the next one."""
    whole, start = "", 0
    for number, line in enumerate(lines, start=1):
        start = start or number
        comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not comment:
            whole += line[:-1]
            continue
        # A comment ends a continued line; only after a blank it is recognised as one.
        yield start, f"{whole} {line}" if comment else whole + line
        whole, start = "", 0
    if whole:
        yield start, whole
