"""The rows of `podlift doctor` for this machine, the quick ones first. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping

from ...checks.check import Check, Row, bad, fine
from ...errors import Problems
from ...job import option_classes
from ...planning.settings import table
from ...storage.folder_files import path_of
from . import interpreter, machine
from . import root as roots

__all__ = ["rows"]


def rows(root: str | None, environ: Mapping[str, str]) -> list[Row]:
    """Return the rows; `root` is an absolute path or a URL, None if unknown."""
    root = None if root is None else path_of(root)
    in_bucket = root is not None and "://" in root
    return [
        Row("python", interpreter.this_interpreter),
        Row("settings", lambda: settings(environ)),
        *([] if root is None else [Row("root", lambda: (roots.bucket if in_bucket else roots.root)(root), in_bucket)]),
        Row("disk", lambda: machine.disks("/" if root is None or in_bucket else root)),
        Row("memory", machine.memory),
        Row("limits", machine.limits),
        Row("fork", machine.processes),
        Row("ports", machine.ports),
        Row("localhost", machine.names),
        Row("proxy", lambda: machine.proxies(environ)),
        Row("namespaces", machine.isolation),
        Row("tensorflow", lambda: interpreter.frameworks(environ)),
    ]


def settings(environ: Mapping[str, str]) -> list[Check]:
    """Check each `PODLIFT_*` variable by itself, so that one mistake does not hide another."""
    names = sorted(name for name in environ if name.startswith(table.PREFIX))
    checks = []
    for name in names:
        problems = Problems()
        values = table.from_environment({name: environ[name]}, problems)
        with problems.collect():
            job = {key: value for key, value in values.items() if key not in table.TARGET}
            table.job({"entry": "train.py", **job})
            for backend in option_classes.every():
                table.target(backend, values)
        checks += [
            bad("settings", "error", _with_name(problem, name), f"unset {name}") for problem in problems.messages
        ]
    valid = len(names) - len({check.fix for check in checks})
    if valid or not checks:
        message = f"{valid} PODLIFT_ variables are valid" if valid else "no PODLIFT_ variables"
        checks.insert(0, fine("settings", message))
    return checks


def _with_name(problem: str, name: str) -> str:
    problem = problem.rstrip(".")
    return problem if name in problem else f"{name}: {problem}"
