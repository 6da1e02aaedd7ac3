"""What the readers of requirements bring together: lines of PEP 508, pip's options, local folders, and every mistake."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from ...checks import Finding
from ...errors import Problems
from ..paths import usable

_SHOWN = 200
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_VCS = ("git+", "hg+", "svn+", "bzr+")
_ARCHIVES = (".whl", ".tar.gz", ".tar.bz2", ".zip")
_SECRET_WORDS = re.compile(r"token|key|secret|passw|sig|auth|credential", re.IGNORECASE)
# `./libs/x[train]`: what is in brackets are extras, where no folder has such a name.
_WITH_EXTRAS = re.compile(r"(.*?)\[([\w\s,.-]*)\]")


class Gathering:
    """The state of one reading.

    Args:
        project: the folder that paths are relative to.
    """

    def __init__(self, project: Path) -> None:
        self.project = project
        self.problems = Problems()
        self.notes: list[Finding] = []
        self.options: list[str] = []
        # Folders whose own requirements are to be read too, with the extras of them that are wanted.
        self.waiting: list[tuple[Path, tuple[str, ...]]] = []
        self.folders: set[str] = set()
        # Distributions that the bundle itself holds: no index may be asked for them.
        self.local_names: set[str] = set()
        self.constraints: list[Requirement] = []
        self._requirements: dict[str, tuple[Requirement, set[str]]] = {}

    def refuse(self, where: str, said: str) -> None:
        """Take a mistake.

        Args:
            where: "file:line", or what stands for it.
            said: the sentence.
        """
        sentence = f"{where}: {said}"
        if sentence not in self.problems.found:
            self.problems.found.append(sentence)

    def add(self, wanted: Requirement, hashes: Iterable[str] = ()) -> None:
        """Take a requirement that was understood."""
        line = written(wanted)
        self._requirements.setdefault(line, (wanted, set()))[1].update(hashes)

    def option(self, name: str, value: str = "") -> None:
        """Take an option of pip, once."""
        line = f"{name} {value}".rstrip()
        if line not in self.options:
            self.options.append(line)

    def lines(self) -> tuple[str, ...]:
        """Return the requirements as pip takes them, less those that the bundle itself holds."""
        found = []
        for wanted, hashes in self._requirements.values():
            if canonicalize_name(wanted.name) not in self.local_names:
                narrowed = Requirement(str(wanted))
                for limit in self.constraints:
                    if same_name(limit, wanted) and not (limit.marker or limit.url or wanted.url):
                        narrowed.specifier &= limit.specifier
                found.append(" ".join([written(narrowed), *(f"--hash={value}" for value in sorted(hashes))]))
        return tuple(sorted(set(found)))

    def read(self, text: str, where: str, *, base: Path | None = None, hashes: Iterable[str] = ()) -> None:
        """Take a requirement as it is written: PEP 508, a URL, or a local folder.

        Args:
            text: the requirement.
            where: "file:line".
            base: the folder of the file that it stands in.
            hashes: those that pip shall insist on.
        """
        for wanted in self.understand(text, where, base=base):
            self.add(wanted, hashes)

    def understand(self, text: str, where: str, *, base: Path | None = None) -> list[Requirement]:
        """Return the requirement that a text means; none where it is a local folder, or a mistake, which are taken."""
        text = text.strip()
        if self.is_unfit(text, where):
            return []
        try:
            wanted = Requirement(text)
        except InvalidRequirement as error:
            return self._without_name(text, where, base, str(error).partition("\n")[0].rstrip("."))
        if wanted.url is None:
            return [wanted]
        if wanted.url.startswith("file:") or "://" not in wanted.url:
            self.local_names.add(canonicalize_name(wanted.name))
            self.folder(wanted.url, where, base=base, extras=wanted.extras)
            return []
        return [wanted] if self.url(wanted.url, where) else []

    def is_unfit(self, text: str, where: str) -> bool:
        """True, and a mistake is taken, if the text names an environment variable, as pip's files may, or cannot be read."""
        if not text.replace("\t", " ").isprintable():
            self.refuse(where, f"it holds a character that cannot be printed. Received: {shown(text)!r}.")
            return True
        names = sorted(set(_VARIABLE.findall(text)))
        if names:
            self.refuse(
                where,
                f"it takes {', '.join(names)} from the environment, so that it means something else on each machine. Next: "
                "write the value. If it is a secret: pip reads ~/.netrc, and the whole index from PIP_INDEX_URL.",
            )
        return bool(names)

    def url(self, url: str, where: str) -> bool:
        """True if a URL can be kept; else a mistake is taken, which does not quote it."""
        said = _why_not_url(url)
        if said:
            self.refuse(where, said)
        return not said

    def folder(self, text: str, where: str, *, base: Path | None = None, extras: Collection[str] = ()) -> None:
        """Take a local folder: the project itself, or one that is to be packaged with it.

        Args:
            text: its path, or its file: URL.
            where: "file:line".
            base: the folder of the file that names it, tried behind the project.
            extras: those of its own requirements that are wanted too.
        """
        with self.problems.collect(), usable(f"{where}: this", shown(text)):
            self._folder(text, where, base, extras)

    def _folder(self, text: str, where: str, base: Path | None, extras: Collection[str]) -> None:
        path = unquote(urlsplit(text).path) if text.startswith("file:") else text.partition("#")[0]
        path = path.replace("{root:uri}", str(self.project)).replace("{root}", str(self.project))
        bases = [self.project, *([] if base is None else [base])]
        places = [Path(os.path.normpath(above / Path(path).expanduser())) for above in bases]
        place = next((place for place in places if place.exists()), None)
        if place is None:
            # A path made of what is not shown would show it.
            looked = f" Looked at {str(places[0])!r}." if shown(text) == text else ""
            self.refuse(where, f"there is no such folder here. Received: {shown(text)!r}.{looked}")
        elif place.is_file():
            self.refuse(where, _archive(text, place))
        elif not any((place / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg")):
            self.refuse(
                where, f"the folder is no Python project: it holds no pyproject.toml. Received: {shown(text)!r}."
            )
        else:
            self.take_folder(place, extras)

    def take_folder(self, place: Path, extras: Collection[str] = ()) -> None:
        """Take a folder that is there."""
        if not place.samefile(self.project):
            self.folders.add(os.path.relpath(place, self.project))
        wanted = (place, tuple(sorted(extras)))
        if wanted not in self.waiting:
            self.waiting.append(wanted)

    def _without_name(self, text: str, where: str, base: Path | None, reason: str) -> list[Requirement]:
        split = _WITH_EXTRAS.fullmatch(text)
        path, extras = (split[1], split[2].split(",")) if split else (text, [])
        if text.startswith(_VCS) or ("://" in text and not text.startswith("file:")):
            return self._bare_url(text, where)
        if text.startswith((".", "/", "~", "file:")) or path.endswith(_ARCHIVES) or (self.project / path).is_dir():
            self.folder(path, where, base=base, extras=[extra.strip() for extra in extras])
            return []
        self.refuse(
            where, f"this is no requirement: {reason}. Received: {shown(text)!r}. Expected: such as 'numpy>=1.26'."
        )
        return []

    def _bare_url(self, text: str, where: str) -> list[Requirement]:
        if not self.url(text, where):
            return []
        url, _, fragment = text.partition("#")
        fields = dict(part.partition("=")[::2] for part in fragment.split("&"))
        name = fields.pop("egg", "") or _name_of_archive(url)
        rest = "&".join(f"{key}={value}" for key, value in fields.items() if key)
        try:
            return [Requirement(f"{name} @ {url}{'#' if rest else ''}{rest}")]
        except InvalidRequirement:
            self.refuse(where, f"the URL does not say whose it is. Received: {shown(text)!r}. Write: name @ URL.")
            return []


def written(wanted: Requirement) -> str:
    """Return the one way in which podlift writes a requirement."""
    text = str(canonicalize_name(wanted.name))
    if wanted.extras:
        text += f"[{','.join(sorted(canonicalize_name(extra) for extra in wanted.extras))}]"
    text += f" @ {wanted.url}" if wanted.url else ",".join(sorted(map(str, wanted.specifier)))
    return f"{text} ; {wanted.marker}" if wanted.marker else text


def same_name(one: Requirement, other: Requirement) -> bool:
    """True if both name the same distribution."""
    return canonicalize_name(one.name) == canonicalize_name(other.name)


def shown(text: str) -> str:
    """Return a text for a sentence, without what may be secret in a URL."""
    text = re.sub(r"://\S*@", "://****@", text)
    text = re.sub(r"([?&][^=&#\s]*)=[^&#\s]*", r"\1=****", text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _why_not_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        bad = parts.port is not None and not parts.hostname
    except ValueError:
        bad = True
    if bad:
        return "the URL cannot be read; it is not shown, for it may hold a password."
    fields = [part.partition("=")[0] for part in parts.query.split("&")]
    # A user without a password is no secret for ssh, and a token for https.
    if parts.password or (parts.username and "ssh" not in parts.scheme) or any(map(_SECRET_WORDS.search, fields)):
        return (
            "the URL holds credentials, which would be stored with each run; it is not shown. Next: take them out. pip "
            "finds them in ~/.netrc; or give it the whole index in PIP_INDEX_URL or PIP_EXTRA_INDEX_URL."
        )
    return ""


def _name_of_archive(url: str) -> str:
    file = unquote(urlsplit(url).path).rpartition("/")[2]
    try:
        return str(parse_wheel_filename(file)[0])
    except ValueError:
        found = re.fullmatch(r"(.+)-\d[^-]*\.(tar\.gz|zip|tar\.bz2)", file)
        return found[1] if found else ""


def _archive(text: str, place: Path) -> str:
    name = _name_of_archive(place.name) or "name"
    return (
        f"a file of this machine cannot be installed elsewhere. Received: {shown(text)!r}. Next: put it into a folder of the "
        f"project, say wheels, and write two lines instead: '--find-links wheels' and '{name}'."
    )
