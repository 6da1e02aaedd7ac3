"""Reads the requirements of a project, from its files or from a list, and compares them with the installed packages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.pylock import is_valid_pylock_path
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ... import text
from ...checks import Finding
from ...errors import InputError, nearest
from ...job.findings import note, warning
from ...storage.paths import usable
from .. import project
from . import lock, pyproject, requirements_txt
from .collector import RequirementsCollector, normalized, redacted

_SHOWN = 10
_PLACES = ("--index-url", "--extra-index-url", "--find-links", "--trusted-host", "--no-index")
_WITHOUT_TLS = re.compile(r"(?:\w+\+)?\b(?:http|git|ftp|svn)://\S+", re.IGNORECASE)
_HASHES = re.compile(r"(\s--hash=\S+)+$")
# Each of them installs the module `tensorflow`.
TENSORFLOWS = frozenset(
    {"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly", "tf-nightly-cpu",
     "intel-tensorflow", "intel-tensorflow-avx512", "tensorflow-rocm", "tensorflow-cpu-aws"}
)  # fmt: skip
_IMAGES_OWN = TENSORFLOWS | {"keras", "numpy", "protobuf"}
# Files that are not read, each with the next step.
_UNSUPPORTED = {
    "poetry.lock": "poetry export -o requirements.txt",
    "pdm.lock": "pdm export -o requirements.txt",
    "Pipfile.lock": "pipenv requirements > requirements.txt",
    "Pipfile": "pipenv requirements > requirements.txt",
    "environment.yml": "list the packages that pip can install in a requirements.txt",
    "environment.yaml": "list the packages that pip can install in a requirements.txt",
    "pylock.toml": "code_requirements='pylock.toml' (--code-requirements pylock.toml)",
    "setup.cfg": "list its install_requires in a requirements.txt",
    "setup.py": "list its install_requires in a requirements.txt",
}


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """The requirements of a project. Markers are not evaluated."""

    source: str = ""  # the name of the file that was read, "list", or "" if there are no requirements
    lines: tuple[str, ...] = ()  # requirements in PEP 508, sorted; `--hash=...` follows one if its hashes are known
    options: tuple[str, ...] = ()  # pip's options that say where to look, such as `--index-url https://...`
    constraints: tuple[str, ...] = ()  # limits of versions for pip's `-c`; `lines` respect them already
    folders: tuple[str, ...] = ()  # local folders to package with the project, relative to it
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # optional dependencies, none of them wanted
    notes: tuple[Finding, ...] = ()

    @property
    def title(self) -> str:
        """The name of the source in messages."""
        return "the list of requirements" if self.source == "list" else self.source

    def parsed(self) -> list[Requirement]:
        """Return the lines without their hashes."""
        return [Requirement(_HASHES.sub("", line)) for line in self.lines]

    def here(self) -> list[Requirement]:
        """Return the requirements that apply to this interpreter by their markers."""
        return [requirement for requirement in self.parsed() if applies(requirement)]

    @property
    def is_lock(self) -> bool:
        """True if the lines include the requirements of the requirements."""
        name = Path(self.source)
        return name.name == "uv.lock" or is_valid_pylock_path(name)


def applies(requirement: Requirement, extra: str = "") -> bool:
    """True if a requirement's marker holds for this interpreter and an extra."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def gather(setting: str | Sequence[str], folder: Path) -> Requirements:
    """Return the requirements of the project in a folder.

    Args:
        setting: "auto" for the first of uv.lock, requirements.txt and pyproject.toml that exists; "none"; a file's path,
            relative to the project or to the current folder; or a list of requirements.
        folder: the project.

    Raises:
        InputError: names every line that is not a requirement, names something that does not exist, or holds a secret.
    """
    if setting == "none":
        return Requirements()
    collector, source = RequirementsCollector(folder), ""
    with collector.problems.collect():
        if not isinstance(setting, str):
            source = "list"
            requirements_txt.read_list(collector, setting)
        elif setting == "auto":
            source = _read_first(collector)
        else:
            source = _read_file(collector, setting)
    _follow_folders(collector, read={folder} if source == "pyproject.toml" else set())
    collector.problems.raise_if_any()
    lines = collector.lines()
    return Requirements(
        source=source,
        lines=lines,
        options=tuple(collector.options),
        constraints=tuple(sorted({normalized(limit) for limit in collector.constraints})),
        folders=tuple(sorted(collector.folders)),
        extras=pyproject.optional(folder),
        notes=tuple(dict.fromkeys((*collector.notes, *_places(collector.options, lines)))),
    )


def _places(options: Sequence[str], lines: Sequence[str]) -> Iterator[Finding]:
    """Yield notes on the sources of packages in options and requirements, and warnings about sources open to tampering."""
    places = [redacted(option) for option in options if option.partition(" ")[0] in _PLACES]
    if places:
        yield note(f"The requirements name the sources of packages: {text.joined(places, 'and')}")
    for line in (*options, *lines):
        if plain := _WITHOUT_TLS.search(line):
            yield warning(
                f"Packages come from {redacted(plain[0])} without TLS: anyone on the way can replace them, and their code runs "
                "in the training. Next: name an https:// URL"
            )
        if line.startswith("--trusted-host "):
            yield warning(
                f"{redacted(line)}: the certificate of that host is not checked, so that anyone on the way can replace its "
                "packages. Next: remove it, and name the authority of the host by PIP_CERT"
            )


def _follow_folders(collector: RequirementsCollector, read: set[Path]) -> None:
    """Add the requirements of local folders."""
    done: set[tuple[Path, tuple[str, ...]]] = {(folder, ()) for folder in read}
    while collector.waiting:
        item = collector.waiting.pop()
        if item in done:
            continue
        done.add(item)
        folder, extras = item
        if (folder / "pyproject.toml").is_file():
            with collector.problems.collect():
                pyproject.read(collector, folder, extras)
        else:
            collector.warn(
                collector.label(folder),
                "the requirements in its setup.py are not read. Next: add them to the requirements of the project.",
            )


def _read_first(collector: RequirementsCollector) -> str:
    """Read the first file that states requirements; return its name."""
    folder = collector.project
    uv_lock = _uv_lock(folder)
    if uv_lock is not None:
        lock.read_uv(collector, uv_lock)
        _note_unread(collector, "uv.lock", "requirements.txt")
        return "uv.lock"
    if (folder / "requirements.txt").is_file():
        requirements_txt.read_file(collector, folder / "requirements.txt")
        if "project" in project.read_toml(folder / "pyproject.toml"):
            _note_unread(collector, "requirements.txt", "pyproject.toml")
        return "requirements.txt"
    if pyproject.read(collector, folder):
        return "pyproject.toml"
    unsupported = [name for name in _UNSUPPORTED if (folder / name).is_file()]
    if unsupported and not collector.notes:
        message = f"No requirements were read: {unsupported[0]} is not supported. Next: {_UNSUPPORTED[unsupported[0]]}."
        collector.notes.append(Finding("note", message))
    return ""


def _uv_lock(folder: Path) -> Path | None:
    """Return uv's lock file, which may belong to a workspace above."""
    if (folder / "uv.lock").is_file():
        return folder / "uv.lock"
    above = pyproject.workspace(folder)
    if above is None or not (above / "uv.lock").is_file() or not pyproject.is_member(folder):
        return None
    return above / "uv.lock"


def _note_unread(collector: RequirementsCollector, read: str, other: str) -> None:
    if (collector.project / other).is_file():
        message = f"The requirements are read from {read}, not from {other}; code_requirements= chooses another file."
        collector.notes.append(Finding("note", message))


def _read_file(collector: RequirementsCollector, setting: str) -> str:
    with usable("The requirements", setting):
        bases = (collector.project, Path.cwd())
        candidates = [(base / Path(setting).expanduser()).resolve() for base in bases]
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise InputError(_no_file(setting, collector.project))
    if path.name in _UNSUPPORTED and path.name != "pylock.toml":
        raise InputError(
            f"Requirements cannot be read from {path.name}. Received: {setting!r}. Next: {_UNSUPPORTED[path.name]}."
        )
    if path.name == "uv.lock":
        lock.read_uv(collector, path)
    elif is_valid_pylock_path(path):
        lock.read_pylock(collector, path)
    elif path.name == "pyproject.toml":
        pyproject.read(collector, path.parent)
    elif path.suffix in (".toml", ".lock", ".yml", ".yaml", ".py", ".cfg", ".json"):
        raise InputError(
            f"Not a requirements file. Received: {setting!r}. Expected: a text file in pip's format, pyproject.toml, "
            "uv.lock or pylock.toml."
        )
    else:
        requirements_txt.read_file(collector, path)
    return collector.label(path)


def _no_file(setting: str, folder: Path) -> str:
    if re.search(r"[<>=!~;@\[]|://", setting):
        return f"No such requirements file. Received: {len(setting)} characters. Next: write one requirement as a list."
    files = [name for name in ("uv.lock", "pyproject.toml") if (folder / name).is_file()]
    files += [
        path.relative_to(folder).as_posix() for path in sorted([*folder.glob("*.txt"), *folder.glob("*/*.txt")])[:20]
    ]
    words = ["auto", "none", *files]
    return f"No such requirements file. Received: {setting!r}. Looked in {str(folder)!r}. {nearest(setting, words)}"


def pins(requirements: Requirements, installed: Mapping[str, str]) -> list[Finding]:
    """Return an error for each requirement that would replace an installed TensorFlow, Keras, NumPy or protobuf."""
    limits = [Requirement(line) for line in requirements.constraints]
    messages = []
    for requirement in [*requirements.here(), *filter(applies, limits)]:
        name = canonicalize_name(requirement.name)
        if name not in _IMAGES_OWN:
            continue
        affected: list[str] = [name] if name in installed else []
        if not affected and name in TENSORFLOWS:
            affected = sorted(TENSORFLOWS & installed.keys())
        for other in affected:
            fits = not requirement.url and requirement.specifier.contains(installed[other], prereleases=True)
            if other != name or not fits:
                messages.append(_replaces(requirements, requirement, other, installed[other]))
    return [Finding("error", message) for message in dict.fromkeys(messages)]


def _replaces(requirements: Requirements, requirement: Requirement, there: str, version: str) -> str:
    name = canonicalize_name(requirement.name)
    what = f"{name} from a URL" if requirement.url else f"{name}{requirement.specifier}"
    why = "" if name == there else f" Both are the module 'tensorflow'; {name} would overwrite its files."
    if requirements.is_lock:
        fix = f"lock the installed version (uv add '{there}=={version}')"
    else:
        fix = f"accept the installed version too ({there}{_loosened(requirement, version)})"
    subject = "The list of requirements" if requirements.source == "list" else requirements.source
    return (
        f"{subject} asks for {what}, which would replace {there} {version} of the environment.{why} Next: {fix}; or use a "
        "separate environment with code_isolated=True (--code-isolated); or do not read requirements "
        "(code_requirements='none')."
    )


def _loosened(requirement: Requirement, version: str) -> str:
    """Return a specifier with the lowest version that was required, if the installed one is not older."""
    lows = [part.version.removesuffix(".*") for part in requirement.specifier if part.operator in ("==", "~=", ">=")]
    fits = [low for low in lows if Requirement(f"x>={low}").specifier.contains(version, prereleases=True)]
    return f">={fits[0]}" if len(fits) == 1 else ""


def differences(requirements: Requirements, installed: Mapping[str, str]) -> list[Finding]:
    """Return a warning if this environment, in which local tasks run, does not meet the requirements."""
    limits = [limit for line in requirements.constraints if applies(limit := Requirement(line))]
    needed = requirements.here()
    names = dict.fromkeys(canonicalize_name(requirement.name) for requirement in needed)
    deviations = [f"{name} is not installed" for name in names if name not in installed]
    for requirement in [*needed, *limits]:
        name = canonicalize_name(requirement.name)
        if name in installed and not requirement.specifier.contains(installed[name], prereleases=True):
            deviations.append(f"{name} is {installed[name]}, not {requirement.specifier}")
    if not deviations:
        return []
    summary = text.and_more(list(dict.fromkeys(deviations)), _SHOWN)
    return [
        Finding(
            "warning",
            f"Tasks use the current environment, which differs from {requirements.title}: {summary}. Next: "
            f"{_install(requirements)}, or code_isolated=True (--code-isolated) for one with exactly the requirements.",
        )
    ]


def _install(requirements: Requirements) -> str:
    if requirements.source == "list":
        return f"pip install {' '.join(shlex.quote(_HASHES.sub('', line)) for line in requirements.lines[:_SHOWN])}"
    if Path(requirements.source).name == "uv.lock":
        return "uv sync"
    if requirements.source.endswith("pyproject.toml"):
        return "pip install ."
    return f"pip install -r {shlex.quote(requirements.source)}"
