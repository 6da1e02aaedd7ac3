"""Finds the program that an entry names: the folder to package, and where in it the program starts."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ..checks import Finding
from ..errors import InputError, nearest
from ..runtime import cells
from ..storage.paths import usable
from . import project

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


@dataclass(frozen=True, kw_only=True)
class LocatedEntry:
    """An entry that was found. All paths are relative to `project`."""

    project: Path  # the top of the bundle: the project, or a folder that holds it and the other packaged folders
    base: str = ""  # the project itself, "" for `project`
    parts: tuple[str, ...] = ()  # folders and files outside the project that are packaged too
    include: tuple[str, ...] = ()  # patterns, relative to the project, that no rule excludes
    kind: str  # "script", "module" or "function"
    target: str  # the script's path, or the module's dotted name
    function: str
    file: str  # the file in which the program starts
    roots: tuple[str, ...]  # folders that go first on sys.path; "" is `project`
    cwd: str = ""  # the folder in which the program starts
    is_single_file: bool = False  # only `file` may be packaged: its folder is shared with files of others
    generated: Mapping[str, str] = field(default_factory=dict)  # text of the files that podlift generates
    notes: tuple[Finding, ...] = ()
    notebook: str = ""  # the notebook that `file` was made from

    @property
    def home(self) -> Path:
        return self.project / self.base

    @property
    def title(self) -> str:
        """The program, as a run is named after it."""
        return f"{self.notebook.removesuffix('.ipynb')}.py" if self.notebook else self.target


def locate(entry: str | Callable[..., Any], folder: str | None = None) -> LocatedEntry:
    """Find a script, a notebook, a folder with a `__main__.py`, `package.module[:function]`, or a function itself.

    Without `folder`, the project is the nearest one above the entry, else the script's folder, or the current one.
    """
    top = None if folder is None else _folder(folder)
    with usable("The entry", entry):
        located = _callable(entry, top) if callable(entry) else _locate(entry, top)
        return replace(located, cwd="" if located.is_single_file else _cwd(located.project))


def widen(entry: LocatedEntry, include: Sequence[str]) -> LocatedEntry:
    """Return the entry with `include` packaged too: folders outside the project move the top of the bundle up."""
    home = entry.project
    top, inside, outside = project.resolve_includes(home, include)
    base = _relative(home, top)
    before = f"{base}/" if base else ""
    roots = [f"{before}{root}".rstrip("/") for root in entry.roots]
    # An included folder inside the project is data, unless it is a project itself.
    for path in (*outside, *filter(project.is_python_project, inside)):
        roots += [_relative(root, top) for root in project.roots_of_include(path)]
    return replace(
        entry,
        project=top,
        base=base,
        parts=tuple(dict.fromkeys(_relative(path, top) for path in outside)),
        include=tuple(_relative(path, home) for path in inside),
        target=f"{before}{entry.target}" if entry.kind == "script" else entry.target,
        file=f"{before}{entry.file}",
        roots=tuple(dict.fromkeys(roots)),
        cwd=f"{before}{entry.cwd}".rstrip("/"),
        generated={f"{before}{path}": text for path, text in entry.generated.items()},
        notebook=f"{before}{entry.notebook}" if entry.notebook else "",
    )


def _relative(path: Path, top: Path) -> str:
    """Return a path below `top`, "" for `top` itself."""
    text = path.relative_to(top).as_posix()
    return "" if text == "." else text


def _folder(folder: str) -> Path:
    with usable("The project", folder):
        top = Path(folder).expanduser().resolve()
        if not folder or not top.is_dir():
            raise InputError(f"The project is not a folder. Received: {folder!r}.")
        return top


def _cwd(top: Path) -> str:
    """Return the current folder, below the project, so that relative paths work in a task; the project if it is outside."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return ""
    return _relative(here, top) if here.is_relative_to(top) else ""


def _locate(entry: str, top: Path | None) -> LocatedEntry:
    script, _, function = entry.partition(":")
    if script.endswith(".py") and function:
        raise InputError(
            f"A function is addressed by its module, not by a path. Received: {entry!r}. Next: write "
            f"{Path(script).stem + ':' + function!r}, in the folder {str(Path(script).parent)!r}."
        )
    path = Path(entry).expanduser()
    if path.is_dir() and not (_MODULE.fullmatch(entry) and (path / "__init__.py").is_file()):
        return _run_folder(entry, path, top)
    if path.is_file() or entry.endswith((".py", ".ipynb")) or os.sep in entry:
        return _script(entry, path, top)
    if not _MODULE.fullmatch(entry):
        raise InputError(
            f"The entry is not a script, module or function. Received: {entry!r}. "
            "Expected: 'train.py', 'train.ipynb', 'folder', 'package.module' or 'package.module:function'."
        )
    return _module(entry, top)


def _run_folder(entry: str, path: Path, top: Path | None) -> LocatedEntry:
    if (path / "__main__.py").is_file():
        return _script(entry, path / "__main__.py", top)
    scripts = sorted(item.name for item in path.glob("*.py"))
    hint = (
        f"Next: name a script in it: {', '.join(scripts[:5])}." if scripts else "It does not contain a script either."
    )
    raise InputError(f"The entry is a folder without a __main__.py. Received: {entry!r}. {hint}")


def _script(entry: str, path: Path, top: Path | None) -> LocatedEntry:
    if not path.is_file():
        scripts = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = nearest(path.name, scripts) if scripts else "Next: cd to the folder of your program, or name its path."
        raise InputError(f"There is no file {path.name} in {path.parent.absolute()}. Received: {entry!r}. {hint}")
    if path.suffix not in (".py", ".ipynb"):
        raise InputError(
            f"The entry is not a Python script. Received: {entry!r}. Expected: a file that ends in '.py' or '.ipynb'."
        )
    path = path.absolute()
    path = path.parent.resolve() / path.name
    folder = top or project.above(path.parent) or path.parent
    if not path.is_relative_to(folder):
        raise InputError(f"The script is outside the project. Received: {entry!r}. The project is {str(folder)!r}.")
    is_single_file = top is None and not project.is_private(folder)
    target = path.relative_to(folder).as_posix()
    roots = (
        ("",)
        if is_single_file
        else tuple(dict.fromkeys((_relative(path.parent, folder), *project.source_roots(folder))))
    )
    located = LocatedEntry(
        project=folder,
        kind="script",
        target=target,
        function="",
        file=target,
        roots=roots,
        is_single_file=is_single_file,
    )
    return _converted(located) if path.suffix == ".ipynb" else located


def _converted(notebook: LocatedEntry) -> LocatedEntry:
    """Return the entry for a notebook: a script made of its cells, in the same folder, and the files that cells write."""
    from .source import notebooks

    script = notebooks.script(notebook.project / notebook.target)
    target = _unused(notebook.project, lambda again: cells.script_of(notebook.target, again=again))
    folder = PurePosixPath(notebook.target).parent
    files = {(folder / name).as_posix(): text for name, text in script.files.items()}
    notes = tuple(
        Finding("warning" if note in script.warnings else "note", f"{notebook.target}: {note}") for note in script.notes
    )
    return replace(
        notebook,
        target=target,
        file=target,
        generated={**files, target: script.text},
        notes=notes,
        notebook=notebook.target,
    )


def _callable(function: Callable[..., Any], top: Path | None) -> LocatedEntry:
    from .source import functions

    name = functions.import_name(function)
    if name is not None:
        return _module(name, top, _root_of(name))
    module = functions.function_module(function)
    folder = top or project.above(Path(module.file).parent if module.file else Path.cwd()) or Path.cwd()
    file = _unused(folder, lambda again: f"podlift_{module.name}{'_' * again}.py")
    values = f"the values of {', '.join(module.values)}" if module.values else "no values"
    imports = f", imports of {', '.join(module.modules)}" if module.modules else ""
    sent = f"The function {module.name} is sent as source text, with {values}{imports}."
    return LocatedEntry(
        project=folder,
        kind="function",
        target=file.removesuffix(".py"),
        function=module.name,
        file=file,
        roots=tuple(dict.fromkeys(("", *project.source_roots(folder)))),
        is_single_file=top is None and not project.is_private(folder),
        generated={file: module.text},
        notes=(Finding("note", sent),),
    )


def _unused(folder: Path, name: Callable[[int], str]) -> str:
    """Return the first of the names that no file of a folder has."""
    return next(candidate for candidate in map(name, itertools.count()) if not (folder / candidate).exists())


def _root_of(name: str) -> Path:
    """Return the folder of sys.path from which a module was loaded."""
    module = name.partition(":")[0]
    file = Path(str(sys.modules[module].__file__)).resolve()
    return file.parents[module.count(".") + (file.stem == "__init__")]


def _module(entry: str, top: Path | None, root: Path | None = None) -> LocatedEntry:
    """Find a module as Python does, from the current folder or from `root`."""
    start = root or Path.cwd()
    folder = top or project.above(start) or start
    if not start.is_relative_to(folder):
        start = folder
    if top is None and not project.is_private(folder):
        raise InputError(
            f"The folder to package is shared with other files: {str(folder)!r}. Next: change to the folder that contains "
            f"{entry.partition('.')[0]!r}, or name it with code_project= (--code-project)."
        )
    own = _relative(start, folder)
    name, _, function = entry.partition(":")
    kind = "function" if function else "module"
    # "" is searched last: in a src layout the modules beside src are not the ones that run.
    roots = tuple(dict.fromkeys((*([own] if own else []), *project.source_roots(folder))))
    for location in roots:
        file = module_file(folder / location, name, run=kind == "module")
        if file is not None:
            where = (PurePosixPath(location) / file).as_posix()
            return LocatedEntry(project=folder, kind=kind, target=name, function=function, file=where, roots=roots)
    raise InputError(_no_module(entry, name, [folder / location for location in roots], kind))


def _no_module(entry: str, name: str, folders: list[Path], kind: str) -> str:
    for folder in folders:
        if kind == "module" and (folder / name.replace(".", "/") / "__init__.py").is_file():
            return f"The package {name!r} cannot be run: it has no __main__.py. Received: {entry!r}."
        parts = name.split(".")
        for depth in range(len(parts) - 1, -1, -1):
            parent = folder.joinpath(*parts[:depth])
            if parent.is_dir() and (depth or folder is folders[-1]):
                modules = sorted(p.stem for p in parent.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file())
                hint = nearest(parts[depth], modules) if modules else "Next: cd to the folder of your program."
                return f"There is no module {parts[depth]} in {parent}. Received: {entry!r}. {hint}"
    return f"There is no module {name}. Received: {entry!r}."


def module_file(folder: Path, name: str, *, run: bool = False) -> str | None:
    """Return the file of a dotted module name below `folder`, or, with `run`, the file that `python -m` starts."""
    base = name.replace(".", "/")
    inside = f"{base}/__main__.py" if run else f"{base}/__init__.py"
    return next((file for file in (f"{base}.py", inside) if (folder / file).is_file()), None)
