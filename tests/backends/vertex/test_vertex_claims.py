"""A job is made exactly once, whatever is lost on the way: here the service is scripted, and time passes at once.

Who creates a job holds a claim: killed at any step, or raced by others, there is one job, within two minutes.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
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
from sdk.storage.posix_store import PosixStore

RUN, REGION = "r-aaaaaa", "us-central1"
TAKEN_OVER_S = 120.0
REGIONS = ("us-central1", "europe-west4")
STOCKOUT = VertexRejectedError("Resources are insufficient in region: us-central1.", 429)
QUOTA = VertexRejectedError("The following quota metrics exceed quota limits: aiplatform.googleapis.com/x", 429)
DENIED = VertexRejectedError("Permission 'aiplatform.customJobs.create' denied on resource", 403)
UNKNOWN = VertexRejectedError("The flux capacitor is overheated.", 400)
LOST = OutcomeUnknownError("No answer came.")


class Service:
    """A job service that answers each create call by a script of "made", "lost" and errors, and "made" after its end.

    A job is in its list `late_s` after its creation, and its jobs are the ones with this `number` of the run.
    """

    def __init__(self, clock: FakeClock, *script: object, late_s: float = 0.0, number: int = 1) -> None:
        self.clock, self.number = clock, number
        self.script, self.late_s = list(script), late_s
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
    bodies = {"redacted_body": body, "body": body}
    places = [LocatedRequest(location=at, region=each, **bodies) for at, each in enumerate(regions)]
    request = JobRequest(run_id="r-aaaaaa", number=number, requests=places)

    def age_s(key: str) -> float:
        # An intent that says nothing is from long ago.
        return clock.now() - float(json.loads(bytes((ages or store).get(key))).get("renewed", 0.0))

    return JobCreation(request, store, service, clock, age_s)


def test_the_intent_is_written_before_anything_is_asked(store, clock) -> None:
    service = Service(clock)

    def look() -> None:
        intent = json.loads(bytes(store.get("jobs/0001.intent.json")))
        assert (intent["body"], intent["renewed"]) == ({"displayName": "r"}, 1000.0) and intent["nonce"]

    service.before = look
    made = creation(store, service, clock).ensure()
    assert made == CreatedJob(name="projects/p/locations/us-central1/customJobs/1")
    assert read_created(store, 1) == made == write_tombstone(store, 1), "a cancel learns the name of the job"
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
    assert (service.creates, made.name, made.unsure) == (["us-central1"], service.jobs[0].name, True)


def test_the_answer_of_each_region_is_kept_with_the_job_and_with_its_refusal(store, clock) -> None:
    service = Service(clock, QUOTA)
    assert creation(store, service, clock).ensure().region == "europe-west4"
    assert service.creates == list(REGIONS)
    (note,) = read_notes(store, 1)
    assert note["text"] == "us-central1 rejected the job (quota). The job exceeds the project's quota."
    with pytest.raises(JobNotCreatedError) as caught:
        creation(store, Service(clock, STOCKOUT, DENIED), clock, number=2).ensure()
    beginnings = [str(note["text"]).partition(").")[0] for note in caught.value.notes]
    assert beginnings == ["us-central1 rejected the job (stockout", "europe-west4 rejected the job (permission"]


@pytest.mark.parametrize(
    ("script", "reason", "text"),
    [
        ([UNKNOWN], Reason.REFUSED, rf'^Vertex AI rejected the job in us-central1\. Vertex AI reports: "{UNKNOWN}"$'),
        ([DENIED], Reason.PERMISSION, r"roles/aiplatform\.user"),
        ([QUOTA, STOCKOUT], Reason.STOCKOUT, "the job in europe-west4.*us-central1: The job exceeds"),
    ],
)
def test_only_a_lack_of_machines_asks_the_next_region_and_a_refusal_names_each(
    store, clock, script, reason, text
) -> None:
    service = Service(clock, *script)
    with pytest.raises(JobNotCreatedError, match=text) as caught:
        creation(store, service, clock).ensure()
    assert (caught.value.reason, service.creates) == (reason, list(REGIONS)[: len(script)])


def test_a_request_that_never_arrived_is_sent_again_after_the_list_was_searched(store, clock) -> None:
    service = Service(clock, LOST)
    made = creation(store, service, clock).ensure()
    assert (len(service.creates), made.unsure) == (2, True)
    assert clock.now() >= 1000.0 + 30.0, "the list had the time to be late"


def test_of_two_jobs_that_a_late_list_has_let_begin_one_is_cancelled(store, clock) -> None:
    service = Service(clock, "lost", late_s=100.0)
    made = creation(store, service, clock).ensure()
    assert len(service.jobs) == 2
    assert made == CreatedJob(name=service.jobs[1].name, unsure=True)
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 1, made) == []
    clock.sleep(100.0)
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 2, CreatedJob(name="9")) == [], "jobs of another number"
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 1, made) == service.cancelled == [service.jobs[0].name]
    service.jobs[0] = dataclasses.replace(service.jobs[0], state="JOB_STATE_CANCELLED")
    assert cancel_strays(service, REGIONS, "r-aaaaaa", 1, made) == [], "it is over"


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
    first, second = (CreatedJob(name=f"projects/p/locations/us-central1/customJobs/{number}") for number in (1, 2))
    assert [record_created(store, service, 1, each) for each in (first, second)] == [first, first]
    assert service.cancelled == [second.name]


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


@pytest.mark.parametrize(("answer", "jobs"), [("made", 1), ("lost", 1), (LOST, 0)])
def test_a_cancel_during_a_request_ends_the_creation_and_cancels_its_job(store, clock, answer, jobs) -> None:
    service = Service(clock, answer, late_s=3.0)
    service.before = lambda: write_tombstone(store, 1)
    with pytest.raises(JobNotCreatedError, match="cancelled before"):
        creation(store, service, clock).ensure()
    assert service.creates == ["us-central1"]
    assert set(service.cancelled) == {job.name for job in service.jobs} and len(service.jobs) == jobs
    if not jobs:
        assert clock.now() == 1000.0 + sum(SEARCH_DELAYS_S), "only a job to cancel is searched to the end"


# --- Claims: the creation of a run's second job, by several processes -------------------------------------------------


class KilledError(BaseException):
    """The process is gone: nothing of it runs after this."""


class Mortal:
    """Passes calls on, and kills the process before or after its call number `at`."""

    def __init__(self, inner: Any, calls: Iterator[int], at: int, *, before: bool) -> None:
        self._inner, self._calls, self._at, self._before = inner, calls, at, before

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._inner, name)

        def mortal(*args: Any, **more: Any) -> Any:
            number = next(self._calls)
            if number == self._at and self._before:
                raise KilledError
            try:
                return call(*args, **more)
            finally:
                if number == self._at:
                    raise KilledError

        return mortal


def claiming(store: Any, service: Any, clock: FakeClock, ages: PosixStore) -> JobCreation:
    return creation(store, service, clock, number=2, regions=[REGION], ages=ages)


def until_created(store: PosixStore, service: Any, clock: FakeClock) -> CreatedJob:
    """Poll as a client does that waits for the run."""
    for _ in range(100):
        made = claiming(store, service, clock, store).attempt()
        if made is not None:
            return made
        clock.sleep(2.0)
    raise AssertionError("nobody has created the job")


# The calls of a creation to its store and to the service: read_created, the claim, the request, the record of its name.
STEPS, REQUEST = 4, 3


def kill(store: PosixStore, service: Any, clock: FakeClock, step: int, *, before: bool = True) -> None:
    """Let a process create the job, and kill it before or after its call number `step`."""
    calls = iter(range(1, 1000))
    mortals = [Mortal(each, calls, step, before=before) for each in (store, service)]
    with pytest.raises(KilledError):
        claiming(*mortals, clock, store).attempt()


def is_taken_over(store: PosixStore, service: Any, clock: FakeClock) -> None:
    killed, made = clock.now(), until_created(store, service, clock)
    assert clock.now() - killed <= TAKEN_OVER_S
    assert [job.name for job in service.jobs] == [made.name]
    assert read_created(store, 2) == made


@pytest.mark.parametrize("late_s", [0.0, 20.0], ids=["list_is_current", "list_is_late"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_holder_that_is_killed_at_any_step_leaves_one_job(store, clock, step, before, late_s) -> None:
    service = Service(clock, late_s=late_s, number=2)
    kill(store, service, clock, step, before=before)
    is_taken_over(store, service, clock)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", range(4))
def test_one_that_takes_over_and_is_killed_too_leaves_one_job(store, clock, step, before) -> None:
    service = Service(clock, number=2)
    kill(store, service, clock, REQUEST)
    clock.sleep(61.0)
    # It reads, tries to claim, looks at the claim and searches six times, by two calls each, the last of which is the first
    # of these steps. Then it takes the claim over, sends the request, and records the name.
    kill(store, service, clock, 3 + 6 * 2 + step, before=before)
    is_taken_over(store, service, clock)


def test_of_many_that_race_one_creates_the_job_and_all_find_it(store, clock) -> None:
    service, asked = Service(clock, number=2), list[CreatedJob | None]()
    # Four others ask while the request of the first one is on its way.
    service.before = lambda: asked.extend(claiming(store, service, clock, store).attempt() for _ in range(4))
    made = claiming(store, service, clock, store).attempt()
    assert asked == [None] * 4
    assert [claiming(store, service, clock, store).attempt() for _ in range(4)] == [made] * 4
    assert len(service.jobs) == 1


def test_a_holder_that_is_slow_keeps_its_claim_while_it_works(store, clock) -> None:
    service, others = Service(clock, LOST, LOST, number=2), list[CreatedJob | None]()

    def wait() -> None:
        clock.sleep(50.0)
        others.append(claiming(store, service, clock, store).attempt())

    service.before = wait
    made = claiming(store, service, clock, store).ensure()
    assert others == [None, None, None]
    assert [job.name for job in service.jobs] == [made.name]
    assert cancel_strays(service, [REGION], RUN, 2, made) == []  # type: ignore[arg-type]


def test_a_machine_that_was_suspended_with_a_claim_in_its_hand_sends_no_request(store, clock, monkeypatch) -> None:
    service, own, put = Service(clock, number=2), FakeClock(), store.put_new
    # This one stands still meanwhile.
    monkeypatch.setattr(own, "monotonic", lambda: 0.0)

    def suspended(key: str, data: Any) -> Any:
        monkeypatch.setattr(store, "put_new", put)
        found = put(key, data)
        clock.sleep(3600.0)
        own.time = clock.time
        until_created(store, service, clock)
        store.delete("jobs/0002.created.json")  # so that only the claim tells
        return found

    monkeypatch.setattr(store, "put_new", suspended)
    assert claiming(store, service, own, store).attempt() is None
    assert len(service.jobs) == 1


def test_a_cancellation_while_the_service_is_busy_is_noticed_before_the_next_request(store, clock) -> None:
    busy = VertexRejectedError("Quota exceeded for quota metric 'a' and limit 'a per minute'", 429)
    service = Service(clock, busy, busy, number=2)
    service.before = lambda: write_tombstone(store, 2)
    with pytest.raises(JobNotCreatedError) as caught:
        claiming(store, service, clock, store).attempt()
    assert (caught.value.reason, service.creates) == (Reason.CANCELLED, [REGION])


def test_of_two_jobs_that_lost_requests_have_made_the_older_one_counts(store, clock) -> None:
    service = Service(clock, number=2)
    kill(store, service, clock, REQUEST)
    for number, created in ((8, clock.now() + 2.0), (9, clock.now() + 1.0)):
        service.add(number, created)
    clock.sleep(61.0)
    assert until_created(store, service, clock).id == "9"
