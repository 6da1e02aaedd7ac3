"""Finds what an entry names: the folder to package, and where in it the program starts."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ..checks import Finding
from ..errors import InputError, nearest
from ..runtime import cells
from . import project
from .paths import usable

if TYPE_CHECKING:
    from .source import callables

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a program starts.

    Args:
        project: the folder to which every path in the bundle is relative: the project, or one that holds it and the
            folders beside it that are packaged too.
        base: the project below `project`, "" for itself.
        parts: folders and files beside the project that are packaged too.
        include: patterns, relative to the project, of what no rule leaves out.
        kind: "script", "module" or "function".
        target: the script's path below `project`, or the module's dotted name.
        function: the function's name, or "".
        file: the file to start reading at, below `project`.
        roots: folders below `project` that go first on sys.path; "" is `project` itself.
        cwd: the folder below `project` in which the program starts.
        alone: True when only `file` may be packaged, because `project` is a folder that holds other people's things.
        generated: text of the files that podlift writes into the bundle, by path.
        notes: what the user should know about the entry.
        notebook: the path of the notebook that `file` was made from, "" for none.
    """

    project: Path
    base: str = ""
    parts: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    kind: str
    target: str
    function: str
    file: str
    roots: tuple[str, ...]
    cwd: str = ""
    alone: bool = False
    generated: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()
    notebook: str = ""

    @property
    def home(self) -> Path:
        """The project's own folder."""
        return self.project / self.base


def locate(entry: str | Callable[..., Any], folder: str | None = None) -> Source:
    """Return where `entry` starts.

    Args:
        entry: the path of a script, of a notebook, or of a folder with a `__main__.py`; `package.module`,
            `package.module:function`, or a function itself.
        folder: the project; by default the nearest one above the entry, else the script's folder, or the current one.

    Raises:
        InputError: there is no such thing.
    """
    top = None if folder is None else _folder(folder)
    with usable("The entry", entry):
        found = _callable(entry, top) if callable(entry) else _locate(entry, top)
        return replace(found, cwd="" if found.alone else _cwd(found.project))


def widen(source: Source, include: Sequence[str]) -> Source:
    """Return the entry with what an include adds: folders beside the project move its top up.

    Raises:
        InputError: an include leads nowhere.
    """
    reach = project.extent(source.project, include)
    before = f"{reach.base}/" if reach.base else ""
    roots = tuple(f"{before}{root}".rstrip("/") for root in source.roots)
    return replace(
        source,
        project=reach.top,
        base=reach.base,
        parts=reach.parts,
        include=reach.patterns,
        target=f"{before}{source.target}" if source.kind == "script" else source.target,
        file=f"{before}{source.file}",
        roots=tuple(dict.fromkeys((*roots, *reach.roots))),
        cwd=f"{before}{source.cwd}".rstrip("/"),
        generated={f"{before}{path}": text for path, text in source.generated.items()},
        notebook=f"{before}{source.notebook}" if source.notebook else "",
    )


def _folder(folder: str) -> Path:
    with usable("The project", folder):
        top = Path(folder).expanduser().resolve()
        if not folder or not top.is_dir():
            raise InputError(f"The project is not a folder. Received: {folder!r}.")
        return top


def _cwd(top: Path) -> str:
    """Return the current folder below the project: paths that worked there work in a task. Elsewhere, the project itself."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return ""
    return here.relative_to(top).as_posix().removeprefix(".") if here.is_relative_to(top) else ""


def _locate(entry: str, top: Path | None) -> Source:
    script, _, function = entry.partition(":")
    if script.endswith(".py") and function:
        raise InputError(
            f"A function is named by its module. Received: {entry!r}. Write {Path(script).stem + ':' + function!r}, from "
            f"the folder {str(Path(script).parent)!r}."
        )
    path = Path(entry).expanduser()
    if path.is_dir() and not (_MODULE.fullmatch(entry) and (path / "__init__.py").is_file()):
        return _run_folder(entry, path, top)
    if path.is_file() or entry.endswith((".py", ".ipynb")) or os.sep in entry:
        return _script(entry, path, top)
    if not _MODULE.fullmatch(entry):
        raise InputError(
            f"The entry is no script, module or function. Received: {entry!r}. "
            "Expected: 'train.py', 'train.ipynb', 'folder', 'package.module' or 'package.module:function'."
        )
    return _module(entry, top)


def _run_folder(entry: str, path: Path, top: Path | None) -> Source:
    if (path / "__main__.py").is_file():
        return _script(entry, path / "__main__.py", top)
    known = sorted(item.name for item in path.glob("*.py"))
    hint = f"Name the script in it: {', '.join(known[:5])}." if known else "It holds no script either."
    raise InputError(f"The entry is a folder without a __main__.py. Received: {entry!r}. {hint}")


def _script(entry: str, path: Path, top: Path | None) -> Source:
    if not path.is_file():
        known = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = nearest(path.name, known) if known else f"The folder {str(path.parent)!r} holds no script."
        raise InputError(f"No such entry. Received: {entry!r}. {hint}")
    if path.suffix not in (".py", ".ipynb"):
        raise InputError(
            f"The entry is no Python script. Received: {entry!r}. Expected a file that ends in '.py' or '.ipynb'."
        )
    path = path.absolute()
    path = path.parent.resolve() / path.name
    folder = top or project.above(path.parent) or path.parent
    if not path.is_relative_to(folder):
        raise InputError(f"The script lies outside the project. Received: {entry!r}. The project is {str(folder)!r}.")
    found = _source(folder, path, alone=top is None and not project.is_private(folder))
    return _converted(found) if path.suffix == ".ipynb" else found


def _source(folder: Path, path: Path, *, alone: bool) -> Source:
    target = path.relative_to(folder).as_posix()
    own = PurePosixPath(target).parent.as_posix().removeprefix(".")
    roots = ("",) if alone else tuple(dict.fromkeys((own, *project.source_roots(folder))))
    return Source(project=folder, kind="script", target=target, function="", file=target, roots=roots, alone=alone)


def _converted(notebook: Source) -> Source:
    """Return the entry for a notebook: the script that its cells make, beside it, and the files that cells write."""
    from .source import notebooks

    script = notebooks.script(notebook.project / notebook.target)
    scripts = (cells.script_of(notebook.target, again=again) for again in itertools.count())
    target = next(name for name in scripts if not (notebook.project / name).exists())
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


def _callable(function: Callable[..., Any], top: Path | None) -> Source:
    from .source import callables

    name = callables.named(function)
    if name is not None:
        return _module(name, top, _root_of(name))
    written = callables.written(function)
    folder = top or project.above(Path(written.file).parent if written.file else Path.cwd()) or Path.cwd()
    names = (f"podlift_{written.name}{'_' * again}" for again in itertools.count())
    module = next(name for name in names if not (folder / f"{name}.py").exists())
    return Source(
        project=folder,
        kind="function",
        target=module,
        function=written.name,
        file=f"{module}.py",
        roots=tuple(dict.fromkeys(("", *project.source_roots(folder)))),
        alone=top is None and not project.is_private(folder),
        generated={f"{module}.py": written.text},
        notes=(Finding("note", _luggage(written)),),
    )


def _luggage(written: callables.Written) -> str:
    """Say what is stored with the run because a function uses it."""
    values = f" the values of {', '.join(written.values)}" if written.values else " no values"
    modules = f", imports of {', '.join(written.modules)}" if written.modules else ""
    return f"The function {written.name} travels as source text, with{values}{modules}."


def _root_of(name: str) -> Path:
    """Return the folder of sys.path from which a loaded module came."""
    module = name.partition(":")[0]
    file = Path(str(sys.modules[module].__file__)).resolve()
    levels = module.count(".") + (file.stem == "__init__")
    return file.parents[levels]


def _module(entry: str, top: Path | None, root: Path | None = None) -> Source:
    """Return the entry for a module's name, searched as Python would: from the current folder, or from a known one."""
    start = root or Path.cwd()
    folder = top or project.above(start) or start
    if not start.is_relative_to(folder):
        start = folder
    if top is None and not project.is_private(folder):
        raise InputError(
            f"The folder to package is shared with other things: {str(folder)!r}. Go to the folder that holds "
            f"{entry.partition('.')[0]!r}, or name it with project= (--project)."
        )
    own = start.relative_to(folder).as_posix().removeprefix(".")
    name, _, function = entry.partition(":")
    kind = "function" if function else "module"
    # "" is searched last: with a src layout, what lies beside src is not what runs.
    roots = tuple(dict.fromkeys((*([own] if own else []), *project.source_roots(folder))))
    for place in roots:
        file = module_file(folder / place, name, run=kind == "module")
        if file is not None:
            where = (PurePosixPath(place) / file).as_posix()
            return Source(project=folder, kind=kind, target=name, function=function, file=where, roots=roots)
    raise InputError(_no_module(entry, name, [folder / place for place in roots], kind))


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
