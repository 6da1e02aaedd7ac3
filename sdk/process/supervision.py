"""Whether the process that owns a run on this machine is alive."""

from __future__ import annotations

from ..clock import Clock
from ..job.layout import RunPaths
from ..records.events import resume_count, source_of
from ..records.recorder import has_ended, read_events
from . import spawn

# If no supervisor was recorded within this time, its client died before starting it.
_START_LIMIT_S = 30.0


def is_supervised(paths: RunPaths, clock: Clock) -> bool:
    """Return False once no supervisor can add a verdict any more. Looking ends nothing: see `end_leftovers`."""
    if has_ended(paths):
        return False
    events = read_events(paths, ("submitted", "launched", "started", "resumed"))
    sources = {source_of(name, resume_count(events)) for name in ("supervisor", "launcher")}
    names = [e.data["supervisor"] for e in events if e.kind in ("started", "launched") and e.source in sources]
    if not names:
        return clock.now() - max((event.time for event in events), default=0.0) < _START_LIMIT_S
    if not spawn.same_machine(names[-1]):
        return not names[-1].startswith("gone:")
    return spawn.alive(names[-1])
