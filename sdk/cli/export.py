"""The verb that writes runs to experiment trackers: export."""

from __future__ import annotations

from .. import api, exports, logs
from ..errors import Problems
from ..text import counted
from .output import answer, say
from .parameters import ExportInto, ExportTo, Refs, Root


def export(refs: Refs, to: ExportTo, into: ExportInto = None, root: Root = None) -> None:
    """Write runs to MLflow, Weights & Biases or Trackio.

    Parameters, metrics with steps and times, state, labels and URLs of checkpoints are written, files are not. Exporting a run
    again adds what is new and doubles nothing.
    """
    problems, found = Problems(), dict[str, exports.ExportedRun]()
    # All runs are read before the first one is written.
    with problems.closing():
        with problems.collect():
            exports.check(to)
        for ref in refs:
            with problems.collect():
                run = api.attach(ref, root=root)
                found[run.url] = exports.read(run)
    with logs.heard(lambda text: say(f"podlift: {text}"), "exports"):
        for each in found.values():
            place = exports.write(to, each, into)
            answer(f"{each.id} {place}")
            say(f"{each.id} is {each.state.value}: {counted(len(each.points), 'record')} of metrics.{_rest(each)}")


def _rest(run: exports.ExportedRun) -> str:
    return " It goes on. Next: export it again when it has ended." if run.ended is None else ""
