"""`PODLIFT_*` variables: each is a setting, and means something."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import Problems
from ...planning.settings import table
from ...spec.policies import BACKENDS
from .check import Check, bad, fine


def settings(environ: Mapping[str, str]) -> list[Check]:
    """Read the variables as a plan would, each one alone: what is wrong with one hides nothing of another."""
    named = sorted(name for name in environ if name.startswith(table.PREFIX))
    checks = []
    for name in named:
        problems = Problems()
        found = table.from_environment({name: environ[name]}, problems)
        with problems.collect():
            job = {key: value for key, value in found.items() if key not in table.TARGET}
            table.job({"entry": "train.py", **job})
            for backend in BACKENDS:
                table.backend_options(backend, found)
        checks += [bad("settings", "error", _named(problem, name), f"unset {name}") for problem in problems.found]
    count = len(named) - len({check.fix for check in checks})
    if count or not checks:
        checks.insert(
            0, fine("settings", f"{count} PODLIFT_ variables are right" if count else "no PODLIFT_ variables")
        )
    return checks


def _named(problem: str, name: str) -> str:
    said = problem.rstrip(".")
    return said if name in said else f"{name}: {said}"
