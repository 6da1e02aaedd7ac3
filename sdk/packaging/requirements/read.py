"""What a project needs installed: read from its files or from a list, and compared with what is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ...checks import Finding
from ...errors import InputError, nearest
from .. import project
from ..paths import usable
from . import lock as uvlock
from . import pyproject, requirements_txt
from .gathering import Gathering, written

_SHOWN = 10
_HASHES = re.compile(r"(\s--hash=\S+)+$")
# All of them are the module `tensorflow`.
TENSORFLOWS = frozenset(
    {"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly", "tf-nightly-cpu",
     "intel-tensorflow", "intel-tensorflow-avx512", "tensorflow-rocm", "tensorflow-cpu-aws"}
)  # fmt: skip
_IMAGES_OWN = TENSORFLOWS | {"keras", "numpy", "protobuf"}
# Known by sight, but not read: each with the command that writes what is.
_OTHERS = {
    "poetry.lock": "poetry export -o requirements.txt",
    "pdm.lock": "pdm export -o requirements.txt",
    "Pipfile.lock": "pipenv requirements > requirements.txt",
    "Pipfile": "pipenv requirements > requirements.txt",
    "environment.yml": "list what pip can install in a requirements.txt",
    "environment.yaml": "list what pip can install in a requirements.txt",
    "pylock.toml": "requirements='pylock.toml' (--requirements pylock.toml)",
    "setup.cfg": "list its install_requires in a requirements.txt",
    "setup.py": "list its install_requires in a requirements.txt",
}


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a project needs installed, of which nothing is evaluated yet.

    Args:
        source: where that was read: "uv.lock", "requirements.txt", "pyproject.toml", another file's name, "list", or "" where
            nothing says anything.
        lines: requirements in PEP 508, sorted; behind one of them `--hash=...`, where its hashes are known.
        options: pip's options of where to look, such as `--index-url https://...`, in their order.
        constraints: lines that limit versions, and ask for nothing: for a file that pip gets by `-c`. What they say about the
            requirements themselves is in `lines` already.
        folders: local folders that are needed, relative to the project: to be packaged with it.
        extras: the project's optional dependencies, of which none is taken, by extra.
        notes: what the user should know about the reading.
    """

    source: str = ""
    lines: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()

    def parsed(self) -> list[Requirement]:
        """Return the lines without their hashes."""
        return [Requirement(_HASHES.sub("", line)) for line in self.lines]

    def here(self) -> list[Requirement]:
        """Return those of the lines whose marker holds for this interpreter."""
        return [wanted for wanted in self.parsed() if applies(wanted)]

    @property
    def is_lock(self) -> bool:
        """True where the lines are all that is needed: what they need themselves is among them."""
        name = Path(self.source)
        return uvlock.is_uv(name) or uvlock.is_pylock(name)


def applies(wanted: Requirement, extra: str = "") -> bool:
    """True if a requirement's marker holds for this interpreter.

    Args:
        wanted: the requirement.
        extra: the extra for which it is asked.
    """
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def gather(setting: str | Sequence[str], folder: Path) -> Requirements:
    """Return what a project needs installed.

    Args:
        setting: "auto" for uv.lock, requirements.txt or pyproject.toml, the first that there is; "none"; a file's path,
            relative to the project or to the current folder; or a list of requirements.
        folder: the project.

    Raises:
        InputError: every line that is no requirement, names what is not there, or holds what must not be kept.
    """
    if setting == "none":
        return Requirements()
    gathering, source = Gathering(folder), ""
    with gathering.problems.collect():
        if not isinstance(setting, str):
            source = "list"
            requirements_txt.read_list(gathering, setting)
        elif setting == "auto":
            source = _auto(gathering)
        else:
            source = _named(gathering, setting)
    _follow_folders(gathering, read={folder} if source == "pyproject.toml" else set())
    gathering.problems.raise_if_any()
    return Requirements(
        source=source,
        lines=gathering.lines(),
        options=tuple(gathering.options),
        constraints=tuple(sorted({written(limit) for limit in gathering.constraints})),
        folders=tuple(sorted(gathering.folders)),
        extras=pyproject.optional(folder),
        notes=tuple(dict.fromkeys(gathering.notes)),
    )


def _follow_folders(gathering: Gathering, read: set[Path]) -> None:
    """Take what the local folders need themselves."""
    done: set[tuple[Path, tuple[str, ...]]] = {(place, ()) for place in read}
    while gathering.waiting:
        item = gathering.waiting.pop()
        if item in done:
            continue
        done.add(item)
        place, extras = item
        if (place / "pyproject.toml").is_file():
            with gathering.problems.collect():
                pyproject.read(gathering, place, extras)
        else:
            label = requirements_txt.name_of(gathering, place)
            said = (
                f"{label}: what its setup.py needs installed is not read. Next: name that among the requirements, too."
            )
            gathering.notes.append(Finding("warning", said))


def _auto(gathering: Gathering) -> str:
    """Read the first file that says anything; return its name."""
    folder = gathering.project
    lock = _lock(folder)
    if lock is not None:
        uvlock.read_uv(gathering, lock)
        _note_unread(gathering, "uv.lock", ["requirements.txt"])
        return "uv.lock"
    if (folder / "requirements.txt").is_file():
        requirements_txt.read_file(gathering, folder / "requirements.txt")
        says = "project" in project.read_toml(folder / "pyproject.toml")
        _note_unread(gathering, "requirements.txt", ["pyproject.toml"] if says else [])
        return "requirements.txt"
    if pyproject.read(gathering, folder):
        return "pyproject.toml"
    found = [name for name in _OTHERS if (folder / name).is_file()]
    if found and not gathering.notes:
        said = f"No requirements were read: {found[0]} is not. Next: {_OTHERS[found[0]]}."
        gathering.notes.append(Finding("note", said))
    return ""


def _lock(folder: Path) -> Path | None:
    """Return uv's lock file, that of a workspace above among them."""
    if (folder / "uv.lock").is_file():
        return folder / "uv.lock"
    above = pyproject.workspace(folder)
    if above is None or not (above / "uv.lock").is_file() or not uvlock.holds(above / "uv.lock", folder):
        return None
    return above / "uv.lock"


def _note_unread(gathering: Gathering, read: str, others: list[str]) -> None:
    unread = [name for name in others if (gathering.project / name).is_file()]
    if unread:
        said = f"The requirements are those of {read}; {' and '.join(unread)} was not read. requirements= chooses otherwise."
        gathering.notes.append(Finding("note", said))


def _named(gathering: Gathering, setting: str) -> str:
    with usable("The requirements", setting):
        bases = (gathering.project, Path.cwd())
        places = [(base / Path(setting).expanduser()).resolve() for base in bases]
        path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InputError(_no_file(setting, gathering.project))
    if path.name in _OTHERS and path.name != "pylock.toml":
        raise InputError(
            f"Requirements are not read from a {path.name}. Received: {setting!r}. Next: {_OTHERS[path.name]}."
        )
    if uvlock.is_uv(path):
        uvlock.read_uv(gathering, path)
    elif uvlock.is_pylock(path):
        uvlock.read_pylock(gathering, path)
    elif path.name == "pyproject.toml":
        pyproject.read(gathering, path.parent)
    elif path.suffix in (".toml", ".lock", ".yml", ".yaml", ".py", ".cfg", ".json"):
        raise InputError(
            f"This is no file of requirements. Received: {setting!r}. Expected: a text file as pip reads it, pyproject.toml, "
            "uv.lock or pylock.toml."
        )
    else:
        requirements_txt.read_file(gathering, path)
    return requirements_txt.name_of(gathering, path)


def _no_file(setting: str, folder: Path) -> str:
    if re.search(r"[<>=!~;@\[]|://", setting):
        return f"No such file of requirements. Received: a text of {len(setting)} characters. One requirement is a list of one."
    known = [name for name in ("uv.lock", "pyproject.toml") if (folder / name).is_file()]
    known += [
        path.relative_to(folder).as_posix() for path in sorted([*folder.glob("*.txt"), *folder.glob("*/*.txt")])[:20]
    ]
    words = ["auto", "none", *known]
    return f"No such file of requirements. Received: {setting!r}. Looked in {str(folder)!r}. {nearest(setting, words)}"


def pins(requirements: Requirements, brings: Mapping[str, str]) -> list[Finding]:
    """Return an error for each requirement that would replace TensorFlow, Keras, NumPy or protobuf where they are there.

    Args:
        requirements: what the project needs.
        brings: versions of what an image, or this environment, has installed, by normalised name.
    """
    limits = [Requirement(line) for line in requirements.constraints]
    found = []
    for wanted in [*requirements.here(), *filter(applies, limits)]:
        name = canonicalize_name(wanted.name)
        if name not in _IMAGES_OWN:
            continue
        there = [name] if name in brings else sorted(TENSORFLOWS & set(brings)) if name in TENSORFLOWS else []
        for other in there:
            fits = not wanted.url and wanted.specifier.contains(brings[other], prereleases=True)
            if other != name or not fits:
                found.append(_replaces(requirements, wanted, other, brings[other]))
    return [Finding("error", text) for text in dict.fromkeys(found)]


def _replaces(requirements: Requirements, wanted: Requirement, there: str, version: str) -> str:
    name = canonicalize_name(wanted.name)
    what = f"{name}{wanted.specifier}" if not wanted.url else f"{name} from a URL"
    why = "" if name == there else f" Both are the module 'tensorflow'; {name} would overwrite its files."
    if requirements.is_lock:
        fix = f"lock what is there (uv add '{there}=={version}')"
    else:
        fix = f"ask for what is there too ({there}{_loosened(wanted, version)})"
    return (
        f"{_asks(requirements)} for {what}, which would replace {there} {version}, that the environment brings.{why} Next: "
        f"{fix}; or bring your own with isolated=True (--isolated); or read no requirements (requirements='none')."
    )


def _asks(requirements: Requirements) -> str:
    return "The list of requirements asks" if requirements.source == "list" else f"{requirements.source} asks"


def _loosened(wanted: Requirement, version: str) -> str:
    """Return a specifier that keeps the lowest version which was asked for, where what is there is not older."""
    lows = [part.version.removesuffix(".*") for part in wanted.specifier if part.operator in ("==", "~=", ">=")]
    fits = [low for low in lows if Requirement(f"x>={low}").specifier.contains(version, prereleases=True)]
    return f">={fits[0]}" if len(fits) == 1 else ""


def differences(requirements: Requirements, brings: Mapping[str, str]) -> list[Finding]:
    """Return one warning that says where this environment, in which local tasks run, is not what is asked for.

    Args:
        requirements: what the project needs.
        brings: versions of what is installed, by normalised name.
    """
    limits = [limit for line in requirements.constraints if applies(limit := Requirement(line))]
    missing, other = [], []
    for wanted in requirements.here():
        name = canonicalize_name(wanted.name)
        if name not in brings:
            missing.append(f"{name} is not installed")
    for wanted in [*requirements.here(), *limits]:
        name = canonicalize_name(wanted.name)
        if name in brings and not wanted.specifier.contains(brings[name], prereleases=True):
            other.append(f"{name} is {brings[name]}, not {wanted.specifier}")
    said = [*dict.fromkeys(missing), *dict.fromkeys(other)]
    if not said:
        return []
    shown = ", ".join(said[:_SHOWN]) + (f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else "")
    where = "the list of requirements" if requirements.source == "list" else requirements.source
    return [
        Finding(
            "warning",
            f"Tasks use the current environment, which is not what {where} asks for: {shown}. Next: "
            f"{_install(requirements)}, or isolated=True (--isolated) for an environment made of exactly that.",
        )
    ]


def _install(requirements: Requirements) -> str:
    if requirements.source == "list":
        return f"pip install {' '.join(shlex.quote(_HASHES.sub('', line)) for line in requirements.lines[:_SHOWN])}"
    if uvlock.is_uv(Path(requirements.source)):
        return "uv sync"
    if requirements.source.endswith("pyproject.toml"):
        return "pip install ."
    return f"pip install -r {shlex.quote(requirements.source)}"
