"""Checks whether this machine can run podlift: `for check in examine(root, environ): ...`. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from ...checks.check import Check, Level, bad, fine
from ...errors import Problems
from ...job.targets import BACKENDS
from ...planning.settings import table
from ...storage.folder_files import path_of
from . import interpreter, machine
from . import root as roots

__all__ = ["Check", "Level", "examine"]


def examine(root: str | None, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield the results, those of quick checks first; `root` is an absolute path or a URL, None if unknown."""
    root = None if root is None else path_of(root)
    in_bucket = root is not None and "://" in root
    checks: list[tuple[str, Callable[[], list[Check]]]] = [
        ("python", interpreter.this_interpreter),
        ("settings", lambda: settings(environ)),
        ("root", lambda: [] if root is None else roots.bucket(root) if in_bucket else roots.root(root)),
        ("disk", lambda: machine.disks("/" if root is None or in_bucket else root)),
        ("memory", machine.memory),
        ("limits", machine.limits),
        ("fork", machine.processes),
        ("ports", machine.ports),
        ("localhost", machine.names),
        ("proxy", lambda: machine.proxies(environ)),
        ("namespaces", machine.isolation),
        ("clock", lambda: [machine.clock(time.time())]),
        ("tensorflow", lambda: interpreter.frameworks(environ)),
    ]
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # an unusual machine may break one check: the others still count
            said = f"the check failed: {type(error).__name__}: {error}"
            yield Check(name, False, "error", said, "report this, with the line above")


def settings(environ: Mapping[str, str]) -> list[Check]:
    """Check each `PODLIFT_*` variable by itself, so that one mistake does not hide another."""
    names = sorted(name for name in environ if name.startswith(table.PREFIX))
    checks = []
    for name in names:
        problems = Problems()
        found = table.from_environment({name: environ[name]}, problems)
        with problems.collect():
            job = {key: value for key, value in found.items() if key not in table.TARGET}
            table.job({"entry": "train.py", **job})
            for backend in BACKENDS:
                table.target(backend, found)
        checks += [bad("settings", "error", _with_name(problem, name), f"unset {name}") for problem in problems.found]
    valid = len(names) - len({check.fix for check in checks})
    if valid or not checks:
        said = f"{valid} PODLIFT_ variables are valid" if valid else "no PODLIFT_ variables"
        checks.insert(0, fine("settings", said))
    return checks


def _with_name(problem: str, name: str) -> str:
    problem = problem.rstrip(".")
    return problem if name in problem else f"{name}: {problem}"
