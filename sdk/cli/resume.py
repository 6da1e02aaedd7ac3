"""The verb that goes on with a run: resume."""

from __future__ import annotations

import typer

from .. import api
from ..errors import EXIT_DONE
from .look import Ref
from .output import answer, as_json, say, summary
from .start import Detach, Json, Root, reference
from .watch import follow


def resume(ref: Ref, root: Root = None, detach: Detach = False, json_output: Json = False) -> None:
    """Start a run again that has ended otherwise than by success: the same code, a further attempt."""
    run = api.attach(ref, root=root)
    run.resume()
    shown = reference(run)
    if detach:
        say(f"resumed. Next: podlift wait {shown} · podlift logs {shown} -f · podlift cancel {shown}")
        code = EXIT_DONE
    else:
        code = follow(run, shown, quiet=json_output)
    if json_output:
        as_json(summary(run, run.status()))
    elif detach:
        answer(run.url)
    raise typer.Exit(code)
