"""Looks at this machine the way a run would use it: `for check in examine(root, environ): ...`. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from . import bucket, interpreter, machine
from . import root as roots
from . import settings as variables
from .check import Check, Level

__all__ = ["Check", "Level", "examine"]


def examine(root: str | None, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield the findings, the quick ones first.

    Args:
        root: the root's absolute path, or its URL; None where that is not known.
        environ: the caller's variables.
    """
    distant = root is not None and "://" in root
    looks: list[tuple[str, Callable[[], list[Check]]]] = [
        ("python", interpreter.this_interpreter),
        ("settings", lambda: variables.settings(environ)),
        ("root", lambda: [] if root is None else bucket.bucket(root) if distant else roots.root(root)),
        ("disk", lambda: machine.disks("/" if root is None or distant else root)),
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
    for name, look in looks:
        try:
            yield from look()
        except Exception as error:  # a machine that is odd enough breaks a check: the others still count
            said = f"it could not be looked at: {type(error).__name__}: {error}"
            yield Check(name, False, "error", said, "report this, with the line above")
