"""The actions of Vertex AI on the jobs of a run, as moments of its timeline: from its jobs, its log and its clients.

Vertex AI keeps three times of a job (created, first running, ended). Everything in between, such as a search for machines or
the restart of a worker, is only in the lines that it logs under the name "service".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ....records.events import Event
from ....records.timeline import NOW, Moment
from ....text import duration
from . import diagnose, states
from .logs import SERVICE, LogEntry
from .states import VendorJob

# Lines that repeat the state, or that every job has.
_NOISE = (
    "Vertex AI is provisioning job running framework",
    "Vertex AI is setting up this job",
    "Waiting for training program to start",
    "Job is preparing",
    "Job completed",
    "Job failed",
    "Job was cancelled",
)
# Logged before each start: it matters while it is the last line.
_WAITS = "Waiting for job to be provisioned"
# In Google's texts: a link of two lines.
_LINK = "To find out more about why your job exited"
_CLIENT = "client"


def moments(
    events: Sequence[Event],
    job: VendorJob | None,
    notes: Iterable[Mapping[str, object]],
    log: Sequence[LogEntry],
    *,
    provisioning: str,
    now: float,
) -> list[Moment]:
    """Return the moments of a run.

    Args:
        events: the records of the run; the verdicts hold its earlier jobs.
        job: its latest job; None if there is none.
        notes: the problems before that job was created.
        log: the lines of the service about that job; none if they cannot be read.
        provisioning: selects the advice.
        now: Unix time in seconds.
    """
    finals = [event for event in events if event.kind == "final"]
    all_moments = [_note(note) for event in finals for note in event.data.get("notes") or ()] + [
        _note(note) for note in notes
    ]
    earlier = [states.job_of(event) for event in finals if event.data.get("job")]
    for past in earlier:
        if job is None or past.name != job.name:
            all_moments += _of_job(past)
    if job is not None:
        all_moments += _of_job(job, log)
        all_moments += _waiting(job, log, provisioning, now)
    return all_moments


def _note(note: Mapping[str, object]) -> Moment:
    return Moment(time=float(str(note["time"])), source=_CLIENT, text=str(note["text"]))


def _of_job(job: VendorJob, log: Sequence[LogEntry] = ()) -> Iterator[Moment]:
    if job.created is not None:
        yield Moment(time=job.created, source=SERVICE, text=f"created job {job.id} in {job.region}")
    entries = [entry for entry in log if _short(entry.text) and not entry.text.startswith(_NOISE)]
    entries = [entry for entry in entries if not entry.text.startswith(_WAITS) or entry is entries[-1]]
    if entries and job.over and _short(entries[-1].text) == _short(job.message):
        entries.pop()
    for text, group in groupby(entries, lambda entry: _short(entry.text)):
        same = list(group)
        yield Moment(time=same[0].time, source=SERVICE, text=text + (f" ({len(same)} times)" if same[1:] else ""))
    if job.started is not None and not entries:
        yield Moment(time=job.started, source=SERVICE, text="the job runs")
    if job.over and job.ended is not None:
        text = f"the job ended: {job.state.removeprefix(states.PREFIX)}"
        yield Moment(time=job.ended, source=SERVICE, text=text, causes=(_short(job.message),) if job.message else ())


def _waiting(job: VendorJob, log: Sequence[LogEntry], provisioning: str, now: float) -> Iterator[Moment]:
    """The resource that the job waits for now, with the cause if Vertex AI reports one."""
    if not job.is_waiting:
        return
    state = job.state.removeprefix(states.PREFIX)
    since = "" if job.created is None or job.started else f", {duration(now - job.created)} after its creation"
    diagnoses = [diagnose.diagnose(entry.text, provisioning=provisioning) for entry in log]
    reported = [diagnosis for diagnosis in diagnoses if diagnosis.certain]
    causes = [f"{diagnosis.reason.value}: {diagnosis.message}" for diagnosis in reported[-1:]]
    if state == "QUEUED":
        causes = [diagnose.QUEUED.message]
    yield Moment(time=NOW, source=SERVICE, text=f"the job is {state}{since}", causes=tuple(causes))


def _short(text: str) -> str:
    return text.partition(_LINK)[0].strip().replace("Job is running.", "the job runs")
