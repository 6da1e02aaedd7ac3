"""A job is made exactly once, whatever is lost on the way: here the service is scripted, and time passes at once."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support import FakeClock

from sdk import Reason, logs
from sdk.backends.vertex.client import OutcomeUnknownError, VertexRejectedError
from sdk.backends.vertex.job.create_job import (
    SEARCH_DELAYS_S,
    CreatedJob,
    JobCreation,
    JobNotCreatedError,
    JobRequest,
    LocatedRequest,
    cancel_strays,
    read_created,
    read_notes,
    record_created,
    write_tombstone,
)
from sdk.backends.vertex.job.states import VendorJob

REGIONS = ("us-central1", "europe-west4")
STOCKOUT = VertexRejectedError("Resources are insufficient in region: us-central1.", 429)
QUOTA = VertexRejectedError("The following quota metrics exceed quota limits: aiplatform.googleapis.com/x", 429)
DENIED = VertexRejectedError("Permission 'aiplatform.customJobs.create' denied on resource", 403)
LOST = OutcomeUnknownError("No answer came.")


class Service:
    """A job service that follows a script: "made", or an error, with "+" before it if the job is made all the same.

    Args:
        clock: of the service.
        script: the outcome of each create call; "made" after its end.
        late_s: so long after its creation the list does not show a job.
        number: which job of its run is asked for.
    """

    def __init__(self, clock: FakeClock, *script: object, late_s: float = 0.0, number: int = 1) -> None:
        self.clock, self.number = clock, number
        self.script = list(script)
        self.late_s = late_s
        self.jobs: list[VendorJob] = []
        self.creates: list[str] = []
        self.cancelled: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def create(self, region: str, body: Any) -> VendorJob:
        self.before()
        self.creates.append(region)
        step = self.script.pop(0) if self.script else "made"
        if isinstance(step, Exception):
            raise step
        made = self.add(len(self.jobs) + 1, self.clock.now(), region)
        if step == "lost":
            raise LOST
        return made

    def add(self, id: int, created: float, region: str = REGIONS[0]) -> VendorJob:
        name = f"projects/p/locations/{region}/customJobs/{id}"
        labels = {"podlift-run": "r-aaaaaa", "podlift-job": str(self.number)}
        self.jobs.append(VendorJob(name=name, state="JOB_STATE_QUEUED", labels=labels, created=created))
        return self.jobs[-1]

    def list(self, region: str, labels: Mapping[str, str]) -> list[VendorJob]:
        assert labels == {"podlift-run": "r-aaaaaa"}
        now = self.clock.now()
        return [j for j in self.jobs if j.region == region and now >= (j.created or 0.0) + self.late_s]

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)


def creation(
    store: Any, service: Any, clock: FakeClock, *, number: int = 1, regions: Any = REGIONS, ages: Any = None
) -> JobCreation:
    """`ages` is a store that tells how old a claim is, by default the age of the run."""
    body = {"displayName": "r"}
    requests = [
        LocatedRequest(location=index, region=region, redacted_body=body, body=body)
        for index, region in enumerate(regions)
    ]
    request = JobRequest(run_id="r-aaaaaa", number=number, requests=requests)

    def age_s(key: str) -> float:
        # An intent that says nothing is from long ago.
        return clock.now() - float(json.loads(bytes((ages or store).get(key))).get("renewed", 0.0))

    return JobCreation(request, store, service, clock, age_s)


def test_the_intent_is_written_before_anything_is_asked(store, clock) -> None:
    service = Service(clock)

    def look() -> None:
        intent = json.loads(bytes(store.get("jobs/0001.intent.json")))
        assert intent["body"] == {"displayName": "r"}
        assert intent["nonce"]
        assert intent["renewed"] == 1000.0

    service.before = look
    made = creation(store, service, clock).ensure()
    assert made == CreatedJob(name="projects/p/locations/us-central1/customJobs/1")
    assert read_created(store, 1) == made
    assert service.creates == ["us-central1"]


def test_the_search_for_a_lost_job_reports_its_progress_and_is_kept(store, clock) -> None:
    service = Service(clock, "lost", late_s=5.0)
    said: list[tuple[float, str]] = []
    with logs.heard(lambda text: said.append((clock.now(), text)), "backends"):
        made = creation(store, service, clock).ensure()
    assert said == [
        (1000.0, "Request 1 for a job in us-central1 got no answer: No answer came."),
        (1000.0, "Searching the list of jobs for about 30 s, because another request could start a second job."),
        (1000.0, "The list does not show the job. Searching again in 1 s."),
        (1001.0, "The list does not show the job. Searching again in 2 s."),
        (1003.0, "The list does not show the job. Searching again in 4 s."),
        (1007.0, f"The job exists all the same: {made.id} in us-central1."),
    ]
    assert [note["text"] for note in read_notes(store, 1)] == [said[0][1], said[-1][1]]
    assert read_notes(store, 2) == ()


def test_the_answer_of_each_region_is_kept_with_the_job_and_with_its_refusal(store, clock) -> None:
    creation(store, Service(clock, QUOTA), clock).ensure()
    assert [note["text"] for note in read_notes(store, 1)] == [
        "us-central1 rejected the job (quota). The job exceeds the project's quota."
    ]
    with pytest.raises(JobNotCreatedError) as caught:
        creation(store, Service(clock, STOCKOUT, DENIED), clock, number=2).ensure()
    assert [str(note["text"])[:40] for note in caught.value.notes] == [
        "us-central1 rejected the job (stockout).",
        "europe-west4 rejected the job (permissio",
    ]


def test_a_rejection_in_words_that_are_not_known_is_no_end_of_a_job(store, clock) -> None:
    unknown = VertexRejectedError("The flux capacitor is overheated.", 400)
    with pytest.raises(JobNotCreatedError) as caught:
        creation(store, Service(clock, unknown), clock).ensure()
    assert caught.value.reason is Reason.REFUSED
    text = 'Vertex AI rejected the job in us-central1. Vertex AI reports: "The flux capacitor is overheated."'
    assert str(caught.value) == text


@pytest.mark.parametrize("late_s", [0.0, 20.0])
def test_a_lost_reply_is_looked_up_before_another_request_also_in_a_late_list(store, clock, late_s) -> None:
    service = Service(clock, "lost", late_s=late_s)
    made = creation(store, service, clock).ensure()
    assert (len(service.creates), made.name, made.unsure) == (1, service.jobs[0].name, True)


def test_a_request_that_never_arrived_is_sent_again_after_the_list_was_searched(store, clock) -> None:
    service = Service(clock, LOST)
    made = creation(store, service, clock).ensure()
    assert len(service.creates) == 2
    assert clock.now() >= 1000.0 + 30.0, "the list had the time to be late"
    assert made.unsure


def test_of_two_jobs_that_a_late_list_has_let_begin_one_is_cancelled(store, clock) -> None:
    service = Service(clock, "lost", late_s=100.0)
    made = creation(store, service, clock).ensure()
    assert len(service.jobs) == 2
    assert made == CreatedJob(name=service.jobs[1].name, unsure=True)
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 1, made) == []
    clock.sleep(100.0)
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 1, made) == [service.jobs[0].name]
    assert service.cancelled == [service.jobs[0].name]
    service.jobs[0] = dataclasses.replace(service.jobs[0], state="JOB_STATE_CANCELLED")
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 1, made) == [], "it is over"


def test_jobs_of_another_number_are_no_strays(store, clock) -> None:
    service = Service(clock)
    made = creation(store, service, clock).ensure()
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 2, CreatedJob(name="projects/p/locations/l/customJobs/9")) == []
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 1, made) == []


def test_without_any_answer_it_says_so_and_the_next_client_finds_the_job(store, clock) -> None:
    service = Service(clock, LOST, LOST, LOST)
    with pytest.raises(OutcomeUnknownError, match=r"sent 3 times.*find it by its label"):
        creation(store, service, clock).ensure()
    assert len(service.creates) == 3
    with pytest.raises(LookupError):
        store.get("jobs/0001.created.json")
    # One of the three was carried out after all.
    service.create("us-central1", object())
    made = creation(store, service, clock).ensure()
    assert made == CreatedJob(name=service.jobs[0].name, unsure=True)
    assert len(service.creates) == 4


def test_of_two_jobs_the_one_that_was_noted_first_stays(store, clock) -> None:
    service = Service(clock)
    first = record_created(store, service, 1, CreatedJob(name="projects/p/locations/us-central1/customJobs/1"))
    assert record_created(store, service, 1, CreatedJob(name="projects/p/locations/us-central1/customJobs/2")) == first
    assert service.cancelled == ["projects/p/locations/us-central1/customJobs/2"]


@pytest.mark.parametrize("refusal", [STOCKOUT, QUOTA])
def test_where_there_is_none_the_next_region_is_asked(store, clock, refusal) -> None:
    service = Service(clock, refusal)
    assert creation(store, service, clock).ensure().region == "europe-west4"
    assert service.creates == list(REGIONS)


def test_every_region_that_has_refused_is_named(store, clock) -> None:
    with pytest.raises(JobNotCreatedError, match=r"the job in europe-west4.*us-central1: The job exceeds") as caught:
        creation(store, Service(clock, QUOTA, STOCKOUT), clock).ensure()
    assert caught.value.reason is Reason.STOCKOUT


def test_a_request_that_no_region_would_accept_is_sent_once(store, clock) -> None:
    service = Service(clock, DENIED)
    with pytest.raises(JobNotCreatedError, match=r"roles/aiplatform\.user") as caught:
        creation(store, service, clock).ensure()
    assert (caught.value.reason, service.creates) == (Reason.PERMISSION, ["us-central1"])


def test_a_refusal_after_a_lost_reply_may_be_the_first_jobs_own_doing(store, clock) -> None:
    # The job that was made, and that the list shows late, has used the quota up.
    service = Service(clock, "lost", QUOTA, late_s=31.0)
    made = creation(store, service, clock).ensure()
    assert (made.name, len(service.jobs)) == (service.jobs[0].name, 1)


def test_a_cancel_before_there_is_a_job_keeps_every_process_from_making_one(store, clock) -> None:
    service = Service(clock)
    assert write_tombstone(store, 1) == CreatedJob(name="")
    with pytest.raises(JobNotCreatedError, match="cancelled before") as caught:
        creation(store, service, clock).ensure()
    assert (caught.value.reason, service.creates) == (Reason.CANCELLED, [])


def test_a_run_cancelled_during_the_search_for_its_lost_job_sends_no_further_request(store, clock) -> None:
    service = Service(clock, LOST)
    service.before = lambda: write_tombstone(store, 1)
    with pytest.raises(JobNotCreatedError, match="cancelled before"):
        creation(store, service, clock).ensure()
    assert service.creates == ["us-central1"]
    assert clock.now() == 1000.0 + sum(SEARCH_DELAYS_S), "only a job to cancel is searched to the end"


@pytest.mark.parametrize("answer", ["made", "lost"])
def test_a_job_that_is_made_during_a_cancel_is_cancelled_by_its_creator(store, clock, answer) -> None:
    service = Service(clock, answer, late_s=3.0)
    service.before = lambda: write_tombstone(store, 1)
    with pytest.raises(JobNotCreatedError, match="cancelled before"):
        creation(store, service, clock).ensure()
    assert set(service.cancelled) == {"projects/p/locations/us-central1/customJobs/1"}


def test_a_cancel_after_the_creation_learns_the_name_of_the_job(store, clock) -> None:
    made = creation(store, Service(clock), clock).ensure()
    assert write_tombstone(store, 1) == made
