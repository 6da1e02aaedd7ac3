"""Collects requirements from files: PEP 508 lines, pip's options, local folders, and every mistake."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from ... import text as texts
from ...checks import Finding
from ...errors import Problems
from ...storage.paths import usable

_SHOWN = 200
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_SECRET_WORDS = re.compile(r"token|key|secret|passw|sig|auth|credential", re.IGNORECASE)


class RequirementsCollector:
    """The requirements read so far. Paths are relative to `project`; `where` in its methods is "file:line", for messages."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.problems = Problems()
        self.notes: list[Finding] = []
        self.options: list[str] = []
        self.constraints: list[Requirement] = []
        self.folders: set[str] = set()
        # Folders with requirements that are still to be read, and the requested extras.
        self.waiting: list[tuple[Path, tuple[str, ...]]] = []
        # Distributions that the bundle contains: they must not come from an index.
        self.local_names: set[str] = set()
        self._requirements: dict[str, tuple[Requirement, set[str]]] = {}

    def refuse(self, where: str, mistake: str) -> None:
        sentence = f"{where}: {mistake}"
        if sentence not in self.problems.messages:
            self.problems.add(sentence)

    def warn(self, where: str, message: str) -> None:
        self.notes.append(Finding("warning", f"{where}: {message}"))

    def label(self, path: Path) -> str:
        """Return a file's name for messages: relative to the project if it is inside."""
        return path.relative_to(self.project).as_posix() if path.is_relative_to(self.project) else str(path)

    def option(self, name: str, value: str = "") -> None:
        """Add an option of pip, once."""
        line = f"{name} {value}".rstrip()
        if line not in self.options:
            self.options.append(line)

    def names(self) -> set[str]:
        """Return the distributions that are required."""
        return {canonicalize_name(requirement.name) for requirement, _ in self._requirements.values()}

    def lines(self) -> tuple[str, ...]:
        """Return the requirements for pip, without requirements that the bundle contains."""
        lines = set()
        for requirement, hashes in self._requirements.values():
            if canonicalize_name(requirement.name) not in self.local_names:
                narrowed = Requirement(str(requirement))
                for limit in self.constraints:
                    if same_name(limit, requirement) and not (limit.marker or limit.url or requirement.url):
                        narrowed.specifier &= limit.specifier
                lines.add(" ".join([normalized(narrowed), *(f"--hash={value}" for value in sorted(hashes))]))
        return tuple(sorted(lines))

    def add_text(self, text: str, where: str, *, base: Path) -> None:
        """Add a requirement in PEP 508, as a pyproject.toml or a lock has it."""
        if self.is_readable(text, where):
            try:
                self.add(Requirement(text), where, base=base)
            except InvalidRequirement as error:
                reason = str(error).partition("\n")[0].rstrip(".")
                received = f"Received: {redacted(text)!r}. Expected: such as 'numpy>=1.26'."
                self.refuse(where, f"this is not a requirement: {reason}. {received}")

    def add(self, requirement: Requirement, where: str, *, base: Path, hashes: Iterable[str] = ()) -> None:
        """Add a requirement; the path of a local folder is relative to the project or to `base`."""
        url = requirement.url or ""
        if is_local(requirement):
            self.local_names.add(canonicalize_name(requirement.name))
            self.folder(url, where, base=base, extras=requirement.extras)
        elif not url or self.accepts_url(url, where):
            self._requirements.setdefault(normalized(requirement), (requirement, set()))[1].update(hashes)

    def is_readable(self, text: str, where: str) -> bool:
        """False, with the mistake recorded, if a text has unprintable characters or names an environment variable."""
        if not text.replace("\t", " ").isprintable():
            self.refuse(where, f"it contains an unprintable character. Received: {redacted(text)!r}.")
            return False
        names = sorted(set(_VARIABLE.findall(text)))
        if names:
            self.refuse(
                where,
                f"it reads {', '.join(names)} from the environment, which differs between machines. Next: write the value. If "
                "it is a secret: pip reads ~/.netrc, and a whole index URL from PIP_INDEX_URL.",
            )
        return not names

    def accepts_url(self, url: str, where: str) -> bool:
        """False, with a mistake recorded that does not quote the URL, if it cannot be parsed or contains credentials."""
        try:
            parts = urlsplit(url)
            invalid = not parts.scheme or (parts.port is not None and not parts.hostname)
        except ValueError:
            invalid = True
        if invalid:
            self.refuse(where, "the URL cannot be parsed; it is not shown because it may contain a password.")
            return False
        fields = [part.partition("=")[0] for part in parts.query.split("&")]
        # A user without a password is not a secret with ssh, but may be a token with https.
        if parts.password or (parts.username and "ssh" not in parts.scheme) or any(map(_SECRET_WORDS.search, fields)):
            self.refuse(
                where,
                "the URL contains credentials, which would be stored with each run; it is not shown. Next: remove them. pip "
                "finds them in ~/.netrc, or in a whole index URL in PIP_INDEX_URL or PIP_EXTRA_INDEX_URL.",
            )
            return False
        return True

    def folder(self, text: str, where: str, *, base: Path | None = None, extras: Collection[str] = ()) -> None:
        """Add a local folder by its path or file: URL: the project itself, or one to be packaged with it."""
        with self.problems.collect(), usable(f"{where}: this", redacted(text)):
            path = unquote(urlsplit(text).path) if text.startswith("file:") else text.partition("#")[0]
            path = path.replace("{root:uri}", str(self.project)).replace("{root}", str(self.project))
            bases = [self.project] if base is None else [self.project, base]
            candidates = [Path(os.path.normpath(above / Path(path).expanduser())) for above in bases]
            target = next((target for target in candidates if target.exists()), None)
            received = f"Received: {redacted(text)!r}."
            if target is None:
                # If the text was redacted, the path would show the hidden part.
                looked = f" Looked at {str(candidates[0])!r}." if redacted(text) == text else ""
                self.refuse(where, f"there is no such folder here. {received}{looked}")
            elif target.is_file():
                name = archive_name(target.name) or "name"
                self.refuse(
                    where,
                    f"a file of this machine cannot be installed elsewhere. {received} Next: put it into a folder of the "
                    f"project, such as wheels, and write two lines instead: '--find-links wheels' and '{name}'.",
                )
            elif not any((target / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg")):
                self.refuse(where, f"the folder is not a Python project: it has no pyproject.toml. {received}")
            else:
                self.add_folder(target, extras)

    def add_folder(self, folder: Path, extras: Collection[str] = ()) -> None:
        """Add a local folder that exists."""
        if not folder.samefile(self.project):
            self.folders.add(os.path.relpath(folder, self.project))
        item = (folder, tuple(sorted(extras)))
        if item not in self.waiting:
            self.waiting.append(item)


def normalized(requirement: Requirement) -> str:
    """Return a requirement in podlift's one spelling."""
    text = str(canonicalize_name(requirement.name))
    if requirement.extras:
        text += f"[{','.join(sorted(canonicalize_name(extra) for extra in requirement.extras))}]"
    text += f" @ {requirement.url}" if requirement.url else ",".join(sorted(map(str, requirement.specifier)))
    return f"{text} ; {requirement.marker}" if requirement.marker else text


def is_local(requirement: Requirement) -> bool:
    """True for a folder of this machine: `name @ ./folder`, `name @ file:...`."""
    url = requirement.url or ""
    return url.startswith("file:") or bool(url and "://" not in url)


def same_name(one: Requirement, other: Requirement) -> bool:
    return canonicalize_name(one.name) == canonicalize_name(other.name)


def redacted(text: str) -> str:
    """Return a text for messages, without the parts of a URL that may be secret."""
    return texts.clipped(texts.without_passwords(text), _SHOWN)


def archive_name(url: str) -> str:
    """Return the distribution that the file name of a wheel or a source archive tells, "" if it does not."""
    # A .tar.bz2 is named like a .tar.gz; `packaging` knows only the formats that PyPI still takes.
    file = unquote(urlsplit(url).path).rpartition("/")[2].replace(".tar.bz2", ".tar.gz")
    try:
        return str(parse_wheel_filename(file)[0] if file.endswith(".whl") else parse_sdist_filename(file)[0])
    except ValueError:
        return ""
