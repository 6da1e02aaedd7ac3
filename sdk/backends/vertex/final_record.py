"""The final record of a job: one object, created only if absent, that decides what follows the end of the job."""

from __future__ import annotations

from collections.abc import Mapping

from ...records.events import Event, source_of
from ...status import Reason, State
from ...storage.store import Store, create
from .create_job import KEYS, JobNotCreatedError


def write(store: Store, number: int, time: float, data: Mapping[str, object]) -> bool:
    """Create the final record of this job; False if another process was faster, with the same content or another."""
    source = source_of("supervisor", number - 1)
    event = Event(attempt=0, source=source, sequence=1, kind="final", time=time, data=dict(data))
    return create(store, KEYS.event(0, source, 1, "final"), event.to_json())


def of_rejection(error: JobNotCreatedError) -> dict[str, object]:
    """Return the verdict on a run whose job was not created."""
    state = State.CANCELLED if error.reason is Reason.CANCELLED else State.FAILED
    failure = {"task": "", "message": str(error), "traceback": "", "log": ""} if state is State.FAILED else None
    about: dict[str, object] = {"vendor": "", "job": "", "notes": list(error.notes)}
    return {"state": state.value, "reason": error.reason.value, "failure": failure, **about}
