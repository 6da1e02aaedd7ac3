"""Reads requirements files, and lists of their lines: pip's parser takes them apart, podlift decides what it accepts."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from ...errors import nearest
from ..paths import usable
from .collector import RequirementsCollector, archive_name, normalized, redacted

if TYPE_CHECKING:
    from pip_requirements_parser import InstallRequirement, OptionLine

_HASH = re.compile(r"[a-z0-9]+:[0-9a-f]+")
# Those that say what to install from where.
_ACCEPTED = (
    "--index-url", "--extra-index-url", "--find-links", "--no-index", "--no-binary", "--only-binary", "--prefer-binary",
    "--pre", "--require-hashes", "--trusted-host", "--requirement", "--constraint",
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
        # The parser's own error does not tell the reason.
        path.open("rb").close()
        _FileReader(collector, path.parent, label, constraints, (*parents, path)).read(path)
    except OSError as error:
        collector.refuse(label, f"the file cannot be read: {error.strerror}.")
    except (UnicodeError, LookupError):
        collector.refuse(label, "the file is not UTF-8 text. Next: save it as UTF-8.")


def read_list(collector: RequirementsCollector, lines: Iterable[str]) -> None:
    """Read a list; each item is what a line of a file may be."""
    accepted = []
    for number, line in enumerate(lines):
        where = f"requirements[{number}]"
        if "\n" in line or line.endswith("\\") or not line.strip():
            collector.refuse(where, f"an item is one requirement. Received: {redacted(line)!r}.")
            line = ""
        accepted.append(line if collector.is_readable(line, where) else "")
    if any(accepted):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "requirements.txt")
            file.write_text("\n".join(accepted), encoding="utf-8-sig")
            _FileReader(collector, collector.project).read(file)


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


class _FileReader:
    """Reads one file; the items of a list are numbered from 0, and have no `label`."""

    def __init__(
        self,
        collector: RequirementsCollector,
        base: Path,
        label: str = "",
        constraints: bool = False,
        parents: tuple[Path, ...] = (),
    ) -> None:
        self._collector = collector
        self._base = base
        self._label = label
        self._constraints = constraints
        self._parents = parents

    def read(self, path: Path) -> None:
        # Only a project with such a file needs it.
        from pip_requirements_parser import CommentRequirementLine, InvalidRequirementLine, OptionLine, RequirementsFile

        for found in RequirementsFile.parse(str(path)):
            where = f"{self._label}:{found.line_number}" if self._label else f"requirements[{found.line_number - 1}]"
            if isinstance(found, CommentRequirementLine) or not self._collector.is_readable(found.line, where):
                continue
            with self._collector.problems.collect(), usable(f"{where}: this", redacted(found.line)):
                if isinstance(found, InvalidRequirementLine):
                    self._refuse(found.error_message, found.line, where)
                elif isinstance(found, OptionLine):
                    self._options(found, where)
                else:
                    self._requirement(found, where)

    def _refuse(self, message: str, line: str, where: str) -> None:
        # Without the parser's own name, and without the line that it quotes.
        reason = re.sub(r"^(pip_requirements_parser: error|Invalid requirement)[: ]*", "", message.partition("\n")[0])
        if reason.startswith("no such option: "):
            self._refuse_option(redacted(reason.split()[-1]), where)
        else:
            shown = redacted(line)
            # The reason may quote the part of a URL that is a secret.
            why = f": {reason.rstrip('.')}" if shown == line else ""
            mistake = f"this is not a requirement{why}. Received: {shown!r}. Expected: such as 'numpy>=1.26'."
            self._collector.refuse(where, mistake)

    def _refuse_option(self, name: str, where: str) -> None:
        self._collector.refuse(
            where,
            f"podlift does not accept pip's option {name}, only those that say what to install from where. "
            f"{nearest(name, _ACCEPTED)}",
        )

    def _requirement(self, found: InstallRequirement, where: str) -> None:
        requirement, link = found.req, found.link
        bad = [value for value in found.hash_options if not _HASH.fullmatch(value)]
        if bad:
            self._collector.refuse(where, f"a hash looks like 'sha256:1a2b...'. Received: {redacted(bad[0])!r}.")
            return
        if found.install_options or found.global_options:
            self._refuse_option("--global-option", where)
            return
        if link is not None and not (requirement and requirement.url):
            if link.scheme in ("", "file"):
                self._collector.folder(link.url, where, base=self._base, extras=found.extras)
                return
            requirement = self._named(found, where)
        if requirement is not None:
            requirement.marker = found.marker
            self._add(requirement, where, found.hash_options)

    def _named(self, found: InstallRequirement, where: str) -> Requirement | None:
        """Return the requirement of a URL, which tells the name at its end; None, with a mistake recorded, if it does not."""
        url, _, fragment = found.link.url.partition("#")
        if not self._collector.accepts_url(found.link.url, where):
            return None
        requirement: Requirement | None = found.req
        if requirement is None:
            try:
                requirement = Requirement(archive_name(url))
            except InvalidRequirement:
                mistake = "the URL does not tell the distribution's name."
                self._collector.refuse(where, f"{mistake} Received: {redacted(found.line)!r}. Next: write name @ URL.")
                return None
        rest = "&".join(part for part in fragment.split("&") if part and not part.startswith("egg="))
        requirement.url = f"{url}#{rest}" if rest else url
        requirement.specifier = SpecifierSet()
        return requirement

    def _add(self, requirement: Requirement, where: str, hashes: list[str]) -> None:
        if not self._constraints:
            self._collector.add(requirement, where, base=self._base, hashes=hashes)
        elif requirement.extras:
            self._collector.refuse(where, f"a constraint has no extras. Received: {normalized(requirement)!r}.")
        elif not requirement.url or self._collector.accepts_url(requirement.url, where):
            self._collector.constraints.append(requirement)

    def _options(self, found: OptionLine, where: str) -> None:
        from pip_requirements_parser import OPT_BY_OPTIONS_DEST

        if not found.options:
            self._collector.refuse(where, "a --hash must follow a requirement in the same line.")
        for key, value in found.options.items():
            name = OPT_BY_OPTIONS_DEST[key]
            for item in value if isinstance(value, list) else [value]:
                self._option(name, "" if item is True else item, where)

    def _option(self, name: str, value: str, where: str) -> None:
        if name not in _ACCEPTED:
            self._refuse_option(name, where)
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
