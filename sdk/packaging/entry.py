"""Finds what an entry names: the folder to package, and where in it the program starts."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import InputError, nearest
from .paths import usable

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a program starts.

    Args:
        project: the folder that is packaged.
        kind: "script", "module" or "function".
        target: the script's path below `project`, or the module's dotted name.
        function: the function's name, or "".
        file: the file to start reading at, below `project`.
        roots: folders below `project` that go first on sys.path; "" is `project` itself.
        alone: True when only `file` may be packaged, because `project` is a folder that holds other people's things.
    """

    project: Path
    kind: str
    target: str
    function: str
    file: str
    roots: tuple[str, ...]
    alone: bool = False


def locate(entry: str, project: str | None = None) -> Source:
    """Return where `entry` starts.

    Args:
        entry: a script's path, `package.module` or `package.module:function`.
        project: the folder to package; by default the script's folder, or the current one for a module.

    Raises:
        InputError: there is no such thing.
    """
    top = None if project is None else _folder(project)
    with usable("The entry", entry):
        return _locate(entry, top)


def _folder(project: str) -> Path:
    with usable("The project", project):
        top = Path(project).expanduser().resolve()
        if not project or not top.is_dir():
            raise InputError(f"The project is not a folder. Received: {project!r}.")
        return top


def _locate(entry: str, top: Path | None) -> Source:
    script, _, function = entry.partition(":")
    if script.endswith(".py") and function:
        raise InputError(
            f"A function is named by its module. Received: {entry!r}. Write {Path(script).stem + ':' + function!r}, from "
            f"the folder {str(Path(script).parent)!r}."
        )
    path = Path(entry).expanduser()
    if path.is_dir() and not _MODULE.fullmatch(entry):
        raise InputError(f"The entry is a folder. Received: {entry!r}. Name the script in it.")
    if path.is_file() or entry.endswith((".py", ".ipynb")) or os.sep in entry:
        return _script(entry, path, top)
    if not _MODULE.fullmatch(entry):
        raise InputError(
            f"The entry is no script, module or function. Received: {entry!r}. "
            "Expected: 'train.py', 'package.module' or 'package.module:function'."
        )
    return _module(entry, top or Path.cwd())


def _script(entry: str, path: Path, top: Path | None) -> Source:
    if not path.is_file():
        known = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = nearest(path.name, known) if known else f"The folder {str(path.parent)!r} holds no script."
        raise InputError(f"No such entry. Received: {entry!r}. {hint}")
    if path.suffix != ".py":
        raise InputError(f"The entry is no Python script. Received: {entry!r}. Expected a file that ends in '.py'.")
    path = path.absolute()
    project = top or path.parent.resolve()
    path = path.parent.resolve() / path.name
    if not path.is_relative_to(project):
        raise InputError(f"The script lies outside the project. Received: {entry!r}. The project is {str(project)!r}.")
    target = path.relative_to(project).as_posix()
    folder = PurePosixPath(target).parent.as_posix().removeprefix(".")
    roots = tuple(dict.fromkeys((folder, "")))
    alone = top is None and not _is_a_project(project)
    return Source(project=project, kind="script", target=target, function="", file=target, roots=roots, alone=alone)


def _module(entry: str, project: Path) -> Source:
    if not _is_a_project(project):
        raise InputError(
            f"The folder to package is shared with other things: {str(project)!r}. Go to the folder that holds "
            f"{entry.partition('.')[0]!r}, or name it with project= (--project)."
        )
    name, _, function = entry.partition(":")
    kind = "function" if function else "module"
    roots = tuple(root for root in ("src", "") if (project / root).is_dir())
    for root in roots:
        file = module_file(project / root, name, run=kind == "module")
        if file is not None:
            where = (PurePosixPath(root) / file).as_posix()
            return Source(project=project, kind=kind, target=name, function=function, file=where, roots=roots)
    raise InputError(_no_module(entry, name, [project / root for root in roots], kind))


def _no_module(entry: str, name: str, folders: list[Path], kind: str) -> str:
    for folder in folders:
        if kind == "module" and (folder / name.replace(".", "/") / "__init__.py").is_file():
            return f"The package {name!r} cannot be run: it has no __main__.py. Received: {entry!r}."
        parts = name.split(".")
        for depth in range(len(parts) - 1, -1, -1):
            parent = folder.joinpath(*parts[:depth])
            if parent.is_dir() and (depth or folder is folders[-1]):
                known = sorted(p.stem for p in parent.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file())
                hint = nearest(parts[depth], known) if known else "It holds no module."
                return f"No such entry. Received: {entry!r}. Looked for {parts[depth]!r} in {str(parent)!r}. {hint}"
    return f"No such entry. Received: {entry!r}."


def module_file(folder: Path, name: str, *, run: bool = False) -> str | None:
    """Return the file of a module below `folder`, "/" between its parts; None when there is none.

    Args:
        folder: a root of sys.path.
        name: dotted.
        run: True for the file that `python -m name` starts.
    """
    base = name.replace(".", "/")
    inside = f"{base}/__main__.py" if run else f"{base}/__init__.py"
    return next((file for file in (f"{base}.py", inside) if (folder / file).is_file()), None)


def _is_a_project(folder: Path) -> bool:
    """False for the home folder, the top of the file system, and folders in which anybody may write."""
    try:
        home = Path.home().resolve()
    except RuntimeError:
        home = Path(folder.anchor)
    return folder not in (home, Path(folder.anchor)) and not folder.stat().st_mode & stat.S_IWOTH
