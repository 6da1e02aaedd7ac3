"""A run with a job in the queue, beside services that refuse, fail or are silent: repeated requests, and messages."""

import time

import pytest
from support import FakeClock, heard, made, until
from vertex_faults import HOLD, asked, flat, vertex

import sdk
from sdk import Reason, State
from sdk.backends.vertex.client import OutcomeUnknownError, VertexRejectedError
from sdk.cli import app
from sdk.errors import AccessError, PodliftError, StoreError, WaitTimeoutError
from sdk.run import Run
from sdk.storage.retry import RetryPolicy

pytestmark = pytest.mark.process

# A wait of this kind of clock takes no time, and leaves the emulator some.
IMPATIENT = RetryPolicy(connect_s=5.0, read_s=0.2, total_s=60.0, first_s=30.0)


@pytest.fixture
def _impatient(monkeypatch) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._READ_S", 0.1)
    for user in ("records.sync.index", "backends.vertex.job.latest_job", "backends.vertex.wait.waiting"):
        monkeypatch.setattr(f"sdk.{user}.SYNC_RETRY", IMPATIENT)


class QuickClock(FakeClock):
    """A fake clock on which each sleep takes at least five seconds; other processes get a moment."""

    def __init__(self) -> None:
        super().__init__(time.time())

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 5.0))
        time.sleep(0.005)


def quick(run: sdk.Run) -> Run:
    """The run as another process sees it that has looked at it once, with a clock that does not wait."""
    found = Run(run.plan, QuickClock())
    found.status()
    return found


def test_a_run_that_waits_names_the_reason(held, capsys) -> None:
    _, run = held
    status = run.status()
    assert (status.state, status.reason, status.vendor) == (State.PENDING, Reason.QUEUED, "JOB_STATE_QUEUED")
    why = run.why().splitlines()
    assert "stays queued while other jobs of the project use the quota" in why[1]
    assert any(flat(line).startswith("now service the job is QUEUED, ") for line in why)
    assert why[-1] == f"Next: podlift wait {run.url}"
    assert max(map(len, why[why.index("Timeline:") : why.index("", 4)])) <= 80
    assert app.run(["status", run.url]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(f"Next: podlift why {run.url}\n"), "it is not known how long"
    assert "\nspent      nothing: the emulator bills nothing\nvendor     JOB_STATE_QUEUED" in shown


def test_a_denied_read_of_a_job_is_reported_at_once(held) -> None:
    cloud, run = held
    cloud.faults(HOLD, vertex("deny", "customJobs.get"))
    for look in (run.status, run.wait, run.why):
        with pytest.raises(VertexRejectedError) as caught:
            look()
        text = str(caught.value)
        assert "refuses to look at the job. The caller may not see the jobs of this project." in text
        assert text.endswith("This requires roles/aiplatform.viewer on the project, or a role that includes it.")
    assert asked(cloud, "customJobs.get") == 3, "each asked once"


def test_logs_that_are_denied_name_the_role_and_the_rest_is_explained(held) -> None:
    cloud, run = held
    cloud.faults(HOLD, vertex("deny", "entries.list"))
    with pytest.raises(AccessError, match=r"cannot be read without roles/logging\.viewer on the project: 403"):
        list(run.logs())
    assert asked(cloud, "entries.list") == 1
    why = flat(run.why())
    assert "now service The logs cannot be read without roles/logging.viewer on the project: 403" in why
    assert "use the quota that it needs" in why and "service created job" in why
    assert run.status().state is State.PENDING


@pytest.mark.parametrize("operation", ["objects.list", "objects.download"])
def test_a_bucket_that_denies_an_operation_is_named_with_the_command_that_grants_it(held, operation) -> None:
    cloud, run = held
    cloud.faults(HOLD, {"kind": "deny", "operation": operation})
    with pytest.raises(PodliftError) as caught:
        Run(run.plan).status()
    text = str(caught.value)
    assert "403" in text and f"gs://{cloud.bucket}" in text and "add-iam-policy-binding" in text
    assert asked(cloud, operation) <= 4, "parallel requests, and none is repeated"


@pytest.mark.parametrize("kind", ["status_before", "drop_after", "silent_after"])
@pytest.mark.parametrize("operation", ["customJobs.get", "entries.list"])
def test_a_read_that_fails_once_is_repeated_without_a_message(held, monkeypatch, kind, operation) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._READ_S", 0.2)
    monkeypatch.setattr("sdk.backends.vertex.job.logs._TIMEOUT_S", 0.2)
    cloud, run = held[0], quick(held[1])
    cloud.faults(HOLD, vertex(kind, operation, nth=1))
    cloud.forget_requests()
    lines = heard()
    if operation == "customJobs.get":
        run._clock.sleep(1)
        assert run.status().reason is Reason.QUEUED
    else:
        assert list(run.logs()) == []
    # A request without an answer is recorded once its client has left.
    until(lambda: asked(cloud, operation) == 2)
    assert lines == []


def test_a_silent_log_service_delays_an_explanation_by_seconds_and_no_status(held, monkeypatch) -> None:
    monkeypatch.setattr("sdk.backends.vertex.job.logs._SHORT_S", 0.2)
    cloud, run = held
    cloud.faults(HOLD, vertex("silent_before", "entries.list"))
    why = flat(run.why())
    assert "The logs cannot be read: The emulator" in why and "did not answer within 0.2 s" in why
    assert "use the quota that it needs" in why
    # The emulator may take the request after the client has given up.
    until(lambda: asked(cloud, "entries.list"))
    assert asked(cloud, "entries.list") == 1
    assert run.status().state is State.PENDING


@pytest.mark.usefixtures("_impatient")
def test_an_unanswered_status_says_so_and_does_not_hang(held) -> None:
    cloud, run = held
    cloud.faults(HOLD, vertex("silent_before", "customJobs.get"))
    with pytest.raises(OutcomeUnknownError, match=r"has accepted the request, but did not answer within 0\.1 s"):
        Run(run.plan, QuickClock()).status()
    cloud.faults(HOLD, vertex("drop_before", "customJobs.get"))
    with pytest.raises(OutcomeUnknownError, match=r"^The emulator at \S+ cannot be reached: .* Next: start it again"):
        Run(run.plan, QuickClock()).status()
    cloud.faults(HOLD, {"kind": "silent_before"})
    with pytest.raises(StoreError, match="did not respond in time"):
        Run(run.plan, QuickClock()).status()


# One of each kind for each service; a connection that is cut is silence that ends early.
OUTAGES = {
    "the service is silent": vertex("silent_before", "customJobs.get"),
    "the bucket has failed": {"kind": "status_before"},
}


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("rule", OUTAGES.values(), ids=OUTAGES)
def test_a_wait_outlives_minutes_without_an_answer_and_names_the_fault(held, monkeypatch, rule) -> None:
    cloud, run = held[0], quick(held[1])
    cloud.faults(HOLD, rule)
    lines, clock = heard("backends.outages"), run._clock
    until_s, sleep = clock.now() + 300, clock.sleep
    over: list[float] = []

    def slept(seconds: float) -> None:
        sleep(seconds)
        if clock.now() > until_s and not over:
            over.append(clock.now())
            cloud.faults(HOLD)

    monkeypatch.setattr(clock, "sleep", slept)
    with pytest.raises(WaitTimeoutError):
        run.wait(timeout_s=400)
    # One report for each service that does not answer, and one when it does again.
    assert over and "cannot be read for " in lines[0] and len(lines) == 2
    assert f"emulator at 127.0.0.1:{cloud.port} " in lines[0]
    assert lines[-1].startswith("The service answers again, after ")
    assert run.status().state is State.PENDING and len(made(cloud)) == 1


def test_a_wait_with_a_time_limit_ends_in_an_outage_with_the_reason(held) -> None:
    cloud, run = held[0], quick(held[1])
    cloud.faults(HOLD, {"kind": "status_before"})
    with pytest.raises(WaitTimeoutError, match=r"It continues\. It cannot be read now: .*has failed \(503\)"):
        run.wait(timeout_s=30)
