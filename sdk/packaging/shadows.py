"""Modules of a project whose name is taken in a task: `sdk` is podlift, and podlift has loaded some of Python's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .. import __all__ as _PUBLIC
from ..checks import Finding
from .entry import Source
from .program import Import, Program

_HOME = Path(__file__).resolve().parent.parent
_LIMIT_S = 30.0
# What a task has loaded when the program starts, less what every Python has loaded: there the project loses anyway.
_LOADED = "import sys; bare = set(sys.modules); sys.path.insert(0, sys.argv[1]); import sdk.runtime.bootstrap; " + (
    "print(*sorted((set(sys.modules) - bare) & sys.stdlib_module_names - set(sys.builtin_module_names)))"
)


def entry(source: Source) -> list[str]:
    """Return what is wrong with an entry of the name `sdk`."""
    if source.kind == "script" or source.target.partition(".")[0] != "sdk":
        return []
    return [f"The module {source.target!r} cannot be started: in a task `sdk` is podlift. Rename {source.file!r}."]


def sdk(program: Program, file: str, wanted: Import) -> list[str]:
    """Return what an import takes from a project's own `sdk` that podlift does not have: it would get podlift."""
    if not any(program.module(f"{prefix}sdk") for prefix in program.prefixes):
        return []
    if wanted.name != "sdk":
        lost = [] if _ours(wanted.name) and program.find(wanted) is None else [wanted.name]
    else:
        names = [name for name in wanted.wanted if name not in (*_PUBLIC, "*", "__version__")]
        lost = [f"sdk.{name}" for name in names if not _ours(f"sdk.{name}") or program.find(Import(f"sdk.{name}", 0))]
    return [
        f"{program.place(file, wanted.line)} imports {name!r} from the project, but in a task `sdk` is podlift. "
        "Give the project's sdk another name."
        for name in lost
    ]


def _ours(name: str) -> bool:
    place = _HOME.joinpath(*name.split(".")[1:])
    return place.is_dir() or place.with_suffix(".py").is_file()


def standard_library(program: Program) -> list[Finding]:
    """Return a warning for modules of the project that lose against Python's own, which podlift loaded before them."""
    names = {
        name: path
        for name in sorted(sys.stdlib_module_names)
        for prefix in program.prefixes
        if (path := program.module(f"{prefix}{name}")) in program.files
    }
    if not names:
        return []
    # Asked of a fresh Python: this one has loaded other things.
    command = [sys.executable, "-I", "-c", _LOADED, str(_HOME.parent)]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lost = [names[name] for name in shown.split() if name in names]
    if not lost:
        return []
    return [
        Finding(
            "warning",
            f"In a task Python's own modules win over {', '.join(lost)}: podlift has loaded them before. "
            "If the program imports these files, give them other names.",
        )
    ]
