"""Reads requirements files, and lists of their lines: pip's parser takes lines apart, podlift decides what it accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from ...errors import nearest
from ...storage.paths import usable
from .collector import RequirementsCollector, archive_name, is_local, normalized, redacted

if TYPE_CHECKING:
    from packaging.markers import Marker
    from pip_requirements_parser import RequirementParts

_HASH = re.compile(r"[a-z0-9]+:[0-9a-f]+")
_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
# `file:./libs/x[train]`: the brackets hold extras.
_WITH_EXTRAS = re.compile(r"(.+?)\[([\w\s,.-]*)\]")
# The options that choose packages and their sources.
_ACCEPTED = (
    "--index-url", "--extra-index-url", "--find-links", "--no-index", "--no-binary", "--only-binary", "--prefer-binary",
    "--pre", "--require-hashes", "--trusted-host", "--requirement", "--constraint", "--editable", "--hash",
)  # fmt: skip


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
        for number, line in _lines(text):
            reader.read(line, f"{label}:{number}")


def read_list(collector: RequirementsCollector, lines: Iterable[str]) -> None:
    """Read a list; each item is a text that a line of a file may hold."""
    reader = _LineReader(collector, collector.project)
    for number, item in enumerate(lines):
        where = f"requirements[{number}]"
        if len(item.splitlines()) != 1 or item.endswith("\\") or not item.strip():
            collector.refuse(where, f"an item is one requirement. Received: {redacted(item)!r}.")
            continue
        for _, line in _lines(item):
            reader.read(line, where)


def _decoded(data: bytes) -> str:
    # pip's parser would decode by the locale.
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    return data.decode(encoding)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, continued ones joined, without comments."""
    # Only a project with such a file needs it.
    from pip_requirements_parser import TextLine, preprocess

    return ((line.line_number, line.line) for line in preprocess(text) if isinstance(line, TextLine))


def find_links(collector: RequirementsCollector, text: str, where: str, base: Path) -> None:
    """Add a source of wheels: a URL, or a folder of the project."""
    if "://" in text and not text.startswith("file:"):
        if collector.accepts_url(text, where):
            collector.option("--find-links", text)
        return
    path = text.removeprefix("file://")
    folder = next((folder for folder in (base / path, collector.project / path) if folder.exists()), None)
    if folder is None or not folder.resolve().is_relative_to(collector.project):
        collector.refuse(where, f"--find-links does not name a folder of the project. Received: {redacted(text)!r}.")
    else:
        collector.option("--find-links", shlex.quote(str(folder.resolve())))


class _LineReader:
    """Reads the lines of one file, or of a list."""

    def __init__(
        self,
        collector: RequirementsCollector,
        base: Path,
        constraints: bool = False,
        parents: tuple[Path, ...] = (),
    ) -> None:
        self._collector = collector
        self._base = base
        self._constraints = constraints
        self._parents = parents

    def read(self, line: str, where: str) -> None:
        from pip_requirements_parser import (
            OPT_BY_OPTIONS_DEST,
            OptionParsingError,
            get_line_parser,
            get_options_by_dest,
        )

        if not self._collector.is_readable(line, where):
            return
        try:
            text, values, rest = get_line_parser()(line)
        except (OptionParsingError, ValueError) as error:
            self._refuse(str(error), line, where)
            return
        options: list[tuple[str, str]] = []
        for key, value in get_options_by_dest(values).items():
            items = value if isinstance(value, list) else [value]
            # Old files have `-i=URL`.
            options += [(OPT_BY_OPTIONS_DEST[key], "" if item is True else item.lstrip("=")) for item in items]
        if self._may_be_together(text, options, rest, line, where):
            with self._collector.problems.collect(), usable(f"{where}: this", redacted(line)):
                self._apply(text, options, line, where)

    def _may_be_together(
        self, text: str, options: list[tuple[str, str]], rest: list[str], line: str, where: str
    ) -> bool:
        """False, with the mistake recorded, if parts of a line do not belong together; pip's parser would drop some."""
        names = [name for name, _ in options]
        unknown = [name for name in names if name not in _ACCEPTED]
        is_shared = bool(text) or ("--editable" in names and len(names) > 1)
        alone = [name for name in names if is_shared and name != "--hash"]
        received = f"Received: {redacted(line)!r}."
        if unknown:
            self._refuse_option(unknown[0], where)
        elif rest and names:
            self._collector.refuse(
                where,
                f"nothing may follow the options of a line. {received} Next: write each requirement on a separate line: "
                "name, marker, options. A local folder needs no -e.",
            )
        elif alone:
            self._collector.refuse(where, f"{alone[0]} must be on a separate line. {received}")
        elif "--hash" in names and not text:
            self._collector.refuse(where, "a --hash must follow a requirement in the same line.")
        elif not names and not text:
            self._refuse("", line, where)
        else:
            return True
        return False

    def _apply(self, text: str, options: list[tuple[str, str]], line: str, where: str) -> None:
        hashes = [value for name, value in options if name == "--hash"]
        bad = [value for value in hashes if not _HASH.fullmatch(value)]
        if bad:
            self._collector.refuse(where, f"a hash looks like 'sha256:1a2b...'. Received: {redacted(bad[0])!r}.")
        elif text:
            self._requirement(text, line, where, hashes)
        else:
            for name, value in options:
                if name == "--editable":
                    self._requirement(value, line, where, [], editable=True)
                else:
                    self._option(name, value, where)

    def _refuse(self, message: str, line: str, where: str) -> None:
        # Without the parser's own name, and without the line that it quotes.
        reason = re.sub(r"^(pip_requirements_parser: error|Invalid requirement)[: ]*", "", message.partition("\n")[0])
        if reason.startswith("no such option: "):
            self._refuse_option(redacted(reason.split()[-1]), where)
        else:
            redacted_line = redacted(line)
            # The reason may quote the part of a URL that is a secret.
            why = f": {reason.rstrip('.')}" if reason and redacted_line == line else ""
            mistake = f"this is not a requirement{why}. Received: {redacted_line!r}. Expected: such as 'numpy>=1.26'."
            self._collector.refuse(where, mistake)

    def _refuse_option(self, name: str, where: str) -> None:
        self._collector.refuse(
            where,
            f"podlift does not accept pip's option {name}, only options that choose packages and their sources. "
            f"{nearest(name, _ACCEPTED)}",
        )

    def _requirement(self, text: str, line: str, where: str, hashes: list[str], *, editable: bool = False) -> None:
        from pip_requirements_parser import PipError, parse_reqparts_from_editable, parse_reqparts_from_string

        requirement = _named_folder(text)
        if requirement is None:
            try:
                parts = parse_reqparts_from_editable(text) if editable else parse_reqparts_from_string(text)
            except (PipError, ValueError) as error:
                self._refuse(str(error), line, where)
                return
            if parts.link is not None and parts.link.scheme in ("", "file"):
                self._folder(parts, where)
                return
            requirement = parts.requirement if parts.link is None else self._of_url(parts, line, where)
            if requirement is None:
                return
            requirement.marker = parts.marker
        self._add(requirement, where, hashes)

    def _folder(self, parts: RequirementParts, where: str) -> None:
        path, extras = parts.link.url, parts.extras
        if match := _WITH_EXTRAS.fullmatch(path):
            path, extras = match[1], [extra.strip() for extra in match[2].split(",")]
        if self._holds(parts.marker, where):
            self._collector.folder(path, where, base=self._base, extras=extras)

    def _holds(self, marker: Marker | None, where: str) -> bool:
        """False, with the mistake recorded, if the marker of a local folder does not hold here."""
        if marker is None or marker.evaluate({"extra": ""}):
            return True
        self._collector.refuse(
            where,
            "a local folder is packaged for every machine, but its marker does not hold on this one. Received: "
            f"{redacted(str(marker))!r}. Next: remove the marker, or the line.",
        )
        return False

    def _of_url(self, parts: RequirementParts, line: str, where: str) -> Requirement | None:
        """Return the requirement of a URL with the name at its end; record a mistake and return None if there is no name."""
        url, _, fragment = parts.link.url.partition("#")
        if not self._collector.accepts_url(parts.link.url, where):
            return None
        requirement: Requirement | None = parts.requirement
        if requirement is None:
            try:
                requirement = Requirement(archive_name(url))
            except InvalidRequirement:
                mistake = "the URL does not tell the distribution's name."
                self._collector.refuse(where, f"{mistake} Received: {redacted(line)!r}. Next: write name @ URL.")
                return None
        rest = "&".join(part for part in fragment.split("&") if part and not part.startswith("egg="))
        requirement.url = f"{url}#{rest}" if rest else url
        requirement.specifier = SpecifierSet()
        return requirement

    def _add(self, requirement: Requirement, where: str, hashes: list[str]) -> None:
        if is_local(requirement):
            # The same for a constraint: pip on another machine could not read the path.
            if self._holds(requirement.marker, where):
                self._collector.add(requirement, where, base=self._base)
        elif not self._constraints:
            self._collector.add(requirement, where, base=self._base, hashes=hashes)
        elif requirement.extras:
            self._collector.refuse(where, f"a constraint has no extras. Received: {normalized(requirement)!r}.")
        elif not requirement.url or self._collector.accepts_url(requirement.url, where):
            self._collector.constraints.append(requirement)

    def _option(self, name: str, value: str, where: str) -> None:
        if name == "--find-links":
            find_links(self._collector, value, where, self._base)
        elif name not in ("--requirement", "--constraint"):
            if "://" not in value or self._collector.accepts_url(value, where):
                self._collector.option(name, value)
        elif "://" in value:
            mistake = f"{name} must name a file of this machine: the content at a URL may change. Next: copy it here."
            self._collector.refuse(where, mistake)
        else:
            # Like pip, relative to the file that names it.
            constraints = self._constraints or name == "--constraint"
            read_file(self._collector, (self._base / value).resolve(), constraints=constraints, parents=self._parents)


def _named_folder(text: str) -> Requirement | None:
    """Return the requirement of `name @ path`, which pip's parser takes for a path."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return requirement if requirement.url and "://" not in requirement.url else None
