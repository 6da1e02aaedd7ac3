"""Finds the project's folder, its source roots, and the folders outside it that are packaged too."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import InputError, nearest
from ..storage import small_files
from ..storage.paths import usable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MARKS = ("podlift.toml", "pyproject.toml", "setup.py", "requirements.txt", "uv.lock", ".git")


def above(folder: Path) -> Path | None:
    """Return the nearest project at or above a folder, None if there is none.

    The search ends at the home folder, at a world-writable folder and at the border of the file system: a requirements.txt
    there does not belong to the program.
    """
    for candidate in (folder, *folder.parents):
        if not is_private(candidate) or candidate.stat().st_dev != folder.stat().st_dev:
            return None
        if any((candidate / mark).exists() for mark in MARKS):
            return candidate
    return None


def is_private(folder: Path) -> bool:
    """False for the home folder, the top of the file system, and world-writable folders."""
    try:
        home = Path.home().resolve()
    except RuntimeError:
        home = Path(folder.anchor)
    return folder not in (home, Path(folder.anchor)) and not folder.stat().st_mode & stat.S_IWOTH


def read_toml(path: Path) -> dict[str, object]:
    """Return the content of a TOML file, {} when there is none."""
    try:
        return parse_toml(small_files.read(path), str(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None


def parse_toml(data: bytes, name: str) -> dict[str, object]:
    """Return the content of a TOML file; `name` is its name in messages."""
    try:
        content: dict[str, object] = tomllib.loads(data.decode("utf-8-sig"))
        return content
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name!r} is not TOML: {error}.") from None


def source_roots(project: Path) -> tuple[str, ...]:
    """Return the folders of a project that belong on sys.path, according to its build's settings; "" is the project."""
    named = _named_roots(table(read_toml(project / "pyproject.toml"), "tool"))
    roots = [root.strip("/").removeprefix("./") for root in named if isinstance(root, str)]
    return tuple(
        dict.fromkeys(root for root in (*roots, "src", "") if (project / root).is_dir() and _below(project, root))
    )


def _named_roots(tool: dict[str, object]) -> Iterator[object]:
    yield table(tool, "setuptools", "package-dir").get("")
    yield from items(table(tool, "setuptools", "packages", "find"), "where")
    wheel = items(table(tool, "hatch", "build", "targets", "wheel"), "packages")
    yield from (os.path.dirname(name) for name in wheel if isinstance(name, str))
    yield from (item.get("from", "") for item in items(table(tool, "poetry"), "packages") if isinstance(item, dict))


def table(data: object, *keys: str) -> dict[str, object]:
    """Return the table at a path of keys, {} if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def items(data: dict[str, object], key: str) -> list[object]:
    """Return the list at a key of a table, [] if there is none."""
    value = data.get(key)
    return value if isinstance(value, list) else []


def _below(project: Path, root: str) -> bool:
    return Path(os.path.realpath(project / root)).is_relative_to(project)


def resolve_includes(project: Path, include: Sequence[str]) -> tuple[Path, list[Path], list[Path]]:
    """Return the folder that contains the project and all includes, the includes inside the project, and those outside.

    One outside the project must exist, and have a private folder in common with the project.
    """
    inside, outside, problems = list[Path](), list[Path](), list[str]()
    for text in include:
        with usable("An include", text):
            path = Path(os.path.normpath(project / Path(text).expanduser()))
        if path != project and path.is_relative_to(project):
            inside.append(path)
        elif path.exists() and not project.is_relative_to(path):
            outside.append(path)
        else:
            problems.append(_no_include(text, path, project))
    top = Path(os.path.commonpath([project, *outside]))
    if outside and not is_private(top):
        problems.append(
            f"An include is too far from the project: {', '.join(map(repr, map(str, outside)))} and {str(project)!r} have "
            f"only {str(top)!r} in common, which is shared with other files. Next: put both below one folder."
        )
    if problems:
        raise InputError(problems)
    return top, inside, outside


def _no_include(text: str, path: Path, project: Path) -> str:
    if project.is_relative_to(path):
        return f"An include contains the project itself. Received: {text!r}. Next: code_project={str(path)!r} instead."
    names = sorted(item.name for item in path.parent.iterdir()) if path.parent.is_dir() else []
    hint = nearest(path.name, names[:20]) if names else ""
    return (
        f"No such include. Received: {text!r}, which is {str(path)!r}: paths are relative to {str(project)!r}. {hint}"
    )


def roots_of_include(path: Path) -> tuple[Path, ...]:
    """Return the folders that an include adds to sys.path: the folders of its modules, or the source roots of a project."""
    if path.is_file():
        return (path.parent,) if path.suffix == ".py" else ()
    if (path / "__init__.py").is_file():
        return (path.parent,)
    return tuple(path / root for root in source_roots(path))


def is_python_project(folder: Path) -> bool:
    return any((folder / mark).is_file() for mark in ("pyproject.toml", "setup.py"))
