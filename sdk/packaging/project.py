"""Finds the project's folder, its source roots, and the folders outside it that are packaged too."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, nearest
from .paths import usable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MARKS = ("podlift.toml", "pyproject.toml", "setup.py", "requirements.txt", "uv.lock", ".git")


def above(folder: Path) -> Path | None:
    """Return the nearest project at or above a folder, None if there is none.

    The search ends at the home folder, at a world-writable folder, at the top of the file system and at its border to another
    one: a requirements.txt that lies there does not belong to the program.
    """
    for place in (folder, *folder.parents):
        if not is_private(place) or place.stat().st_dev != folder.stat().st_dev:
            return None
        if any((place / mark).exists() for mark in MARKS):
            return place
    return None


def is_private(folder: Path) -> bool:
    """False for the home folder, the top of the file system, and world-writable folders."""
    try:
        home = Path.home().resolve()
    except RuntimeError:
        home = Path(folder.anchor)
    return folder not in (home, Path(folder.anchor)) and not folder.stat().st_mode & stat.S_IWOTH


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, {} when there is none."""
    try:
        found: dict[str, Any] = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
        return found
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} is not TOML: {error}.") from None


def source_roots(project: Path) -> tuple[str, ...]:
    """Return the folders of a project that belong on sys.path; "" is the project itself.

    They are named by setuptools' `package-dir` and `packages.find.where`, hatch's `packages` and poetry's `from`; `src` and
    the project itself always count.
    """
    named = _named_roots(table(read_toml(project / "pyproject.toml"), "tool"))
    roots = [root.strip("/").removeprefix("./") for root in named if isinstance(root, str)]
    return tuple(
        dict.fromkeys(root for root in (*roots, "src", "") if (project / root).is_dir() and _below(project, root))
    )


def _named_roots(tool: dict[str, Any]) -> Iterator[Any]:
    yield table(tool, "setuptools", "package-dir").get("")
    where = table(tool, "setuptools", "packages", "find").get("where")
    yield from where if isinstance(where, list) else []
    wheel = table(tool, "hatch", "build", "targets", "wheel").get("packages")
    yield from (os.path.dirname(name) for name in wheel or [] if isinstance(name, str))
    poetry = table(tool, "poetry").get("packages")
    yield from (item.get("from", "") for item in poetry or [] if isinstance(item, dict))


def table(data: Any, *keys: str) -> dict[str, Any]:
    """Return the table at a path of keys, {} if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _below(project: Path, root: str) -> bool:
    return Path(os.path.realpath(project / root)).is_relative_to(project)


@dataclass(frozen=True, kw_only=True)
class Extent:
    """A project, and the folders outside it that are packaged too. All paths but `patterns` are relative to `top`."""

    top: Path  # the folder that contains all of them
    base: str  # the project, "" for `top` itself
    parts: tuple[str, ...] = ()  # the folders and files outside the project
    patterns: tuple[str, ...] = ()  # includes inside the project, relative to it
    roots: tuple[str, ...] = ()  # folders that the includes add to sys.path


def extent(project: Path, include: Sequence[str]) -> Extent:
    """Return what a bundle of the project covers; an include is a path or a pattern, relative to the project.

    Raises:
        InputError: one outside the project does not exist, or has no private folder in common with the project.
    """
    patterns, outside, problems = [], [], []
    inside: list[Path] = []
    for text in include:
        with usable("An include", text):
            place = Path(os.path.normpath(project / Path(text).expanduser()))
        if place != project and place.is_relative_to(project):
            patterns.append(place.relative_to(project).as_posix())
            # An included folder is data, unless it is a project itself.
            if any((place / mark).is_file() for mark in ("pyproject.toml", "setup.py")):
                inside.append(place)
        elif place.exists() and not project.is_relative_to(place):
            outside.append(place)
        else:
            problems.append(_no_include(text, place, project))
    top = Path(os.path.commonpath([project, *outside]))
    if outside and not is_private(top):
        problems.append(
            f"An include is too far from the project: {', '.join(map(repr, map(str, outside)))} and {str(project)!r} have "
            f"only {str(top)!r} in common, which is shared with other files. Next: put both below one folder."
        )
    if problems:
        raise InputError(problems)
    parts = tuple(dict.fromkeys(place.relative_to(top).as_posix() for place in outside))
    base = project.relative_to(top).as_posix().removeprefix(".")
    own = (place.relative_to(top).as_posix() for place in inside)
    roots = tuple(dict.fromkeys(root for part in (*parts, *own) for root in _roots_of(top, part)))
    return Extent(top=top, base=base, parts=parts, patterns=tuple(patterns), roots=roots)


def _no_include(text: str, place: Path, project: Path) -> str:
    if project.is_relative_to(place):
        return f"An include contains the project itself. Received: {text!r}. Next: code_project={str(place)!r} instead."
    known = sorted(item.name for item in place.parent.iterdir()) if place.parent.is_dir() else []
    hint = nearest(place.name, known[:20]) if known else ""
    return (
        f"No such include. Received: {text!r}, which is {str(place)!r}: paths are relative to {str(project)!r}. {hint}"
    )


def _roots_of(top: Path, part: str) -> Iterator[str]:
    place = top / part
    if place.is_file():
        if place.suffix == ".py":
            yield place.parent.relative_to(top).as_posix().removeprefix(".")
    elif (place / "__init__.py").is_file():
        yield place.parent.relative_to(top).as_posix().removeprefix(".")
    else:
        yield from ("/".join(filter(None, (part, root))) for root in source_roots(place))
