"""Each fault of the emulated service: what the user reads, what is sent again and what is not, and that one job is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support import LIMIT_S, FakeClock, full_only, heard, made, until

import sdk
from sdk import Reason, State, api
from sdk.backends.vertex.client import OutcomeUnknownError, VertexRejectedError
from sdk.errors import AccessError, PodliftError, StoreError, WaitTimeoutError
from sdk.run import Run
from sdk.status import Progress
from sdk.storage.retry import RetryPolicy
from sdk.testing.vertex import Cloud

HOLD = {"api": "vertex", "kind": "hold"}
SLEEPS = "import time; print('started', flush=True); time.sleep(600)"
# A wait of this kind of clock takes no time, and leaves the emulator some.
IMPATIENT = RetryPolicy(connect_s=5.0, read_s=0.2, total_s=60.0, first_s=30.0)


class QuickClock(FakeClock):
    """A fake clock on which each sleep takes at least five seconds; other processes get a moment."""

    def __init__(self) -> None:
        super().__init__(time.time())

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 5.0))
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _lost_jobs_are_searched_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdk.backends.vertex.create_job.SEARCH_DELAYS_S", (0.0, 0.05))


def vertex(kind: str, operation: str = "", **more: Any) -> dict[str, Any]:
    return {"api": "vertex", "kind": kind, **({"operation": operation} if operation else {}), **more}


def asked(cloud: Cloud, operation: str) -> int:
    return cloud.requests().operations.get(operation, 0)


def only_run(cloud: Cloud) -> sdk.Run:
    (info,) = api.runs(root=f"gs://{cloud.bucket}/podlift")
    return api.attach(info.url)


def quick(run: sdk.Run) -> Run:
    """The run as another process sees it that has looked at it once, with a clock that does not wait."""
    found = Run(run.plan, QuickClock())
    found.status()
    return found


def running(run: sdk.Run) -> None:
    until(lambda: any(line.text == "started" for line in run.logs()), run.status)


# --- 403 ------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_submit_without_the_permission_asks_once_and_names_the_role(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run]
) -> None:
    podlift_vertex.faults(vertex("deny", "customJobs.create"))
    with pytest.raises(PodliftError) as caught:
        start(regions=("us-central1", "us-east1"))
    text = str(caught.value)
    assert "rejected the job in us-central1. The caller may not manage jobs in this project." in text
    assert "Permission 'aiplatform.customJobs.create' denied" in text
    assert "This requires roles/aiplatform.user on the project." in text
    assert text.endswith("tries again.") and "Next: podlift resume" in text
    assert asked(podlift_vertex, "customJobs.create") == 1, "neither repeated nor sent to another region"
    run = only_run(podlift_vertex)
    assert (run.status().state, run.status().reason) == (State.FAILED, Reason.PERMISSION)
    assert "roles/aiplatform.user" in run.why()
    podlift_vertex.faults()
    run.resume()
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    assert len(made(podlift_vertex)) == 1


@pytest.mark.full
def test_who_may_not_look_at_a_job_is_told_at_once_and_the_run_is_not_affected(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run]
) -> None:
    podlift_vertex.faults(HOLD)
    run = start()
    podlift_vertex.faults(HOLD, vertex("deny", "customJobs.get"))
    podlift_vertex.forget_requests()
    for look in (run.status, run.wait, run.why):
        with pytest.raises(VertexRejectedError) as caught:
            look()
        text = str(caught.value)
        assert "refuses to look at the job. The caller may not see the jobs of this project." in text
        assert text.endswith("This requires roles/aiplatform.viewer on the project, or a role that includes it.")
    assert asked(podlift_vertex, "customJobs.get") == 3, "each asked once"
    podlift_vertex.faults()
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    assert len(made(podlift_vertex)) == 1


@pytest.mark.full
@pytest.mark.parametrize("kind", [full_only("deny"), "status_before"])
def test_a_lost_answer_and_a_list_that_cannot_be_read_leave_open_whether_there_is_a_job_and_it_is_found_later(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._RETRY_S", 0.2)
    podlift_vertex.faults(HOLD, vertex("drop_after", "customJobs.create"), vertex(kind, "customJobs.list"))
    with pytest.raises(OutcomeUnknownError, match="It is unknown whether the run program-") as caught:
        start()
    assert "the list of jobs cannot be read." in str(caught.value) and "Next: podlift status program-" in str(
        caught.value
    )
    assert asked(podlift_vertex, "customJobs.create") == 1, "another request could make a second job"
    podlift_vertex.faults()
    assert only_run(podlift_vertex).wait(LIMIT_S).state is State.SUCCEEDED
    assert len(made(podlift_vertex)) == 1


def test_who_may_not_cancel_a_job_is_told_and_can_still_look_at_the_run(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.backends.vertex.run._CANCEL_MARGIN_S", 0.0)
    podlift_vertex.faults(HOLD, vertex("deny", "customJobs.cancel"))
    run, lines = start(), heard("backends")
    with pytest.raises(VertexRejectedError, match=r"refuses to cancel the job.*roles/aiplatform\.user"):
        run.cancel(grace_s=0)
    assert [run.status().state for _ in range(2)] == [State.PENDING] * 2
    (line,) = lines
    assert line.startswith("The time to stop by itself is over for the job. The emulator at ")
    assert asked(podlift_vertex, "customJobs.cancel") == 2
    podlift_vertex.faults(HOLD)
    assert api.attach(run.url).wait(LIMIT_S).state is State.CANCELLED, "any client that may cancels it"


def test_logs_that_are_denied_name_the_role(podlift_vertex: Cloud, start: Callable[..., sdk.Run]) -> None:
    podlift_vertex.faults(HOLD, vertex("deny", "entries.list"))
    run = start()
    with pytest.raises(AccessError, match=r"cannot be read without roles/logging\.viewer on the project: 403"):
        list(run.logs())
    assert asked(podlift_vertex, "entries.list") == 1
    assert "roles/logging.viewer" in run.why()
    assert run.status().state is State.PENDING


@pytest.mark.parametrize("operation", ["objects.insert", "objects.list", "objects.download"])
def test_a_bucket_that_denies_an_operation_is_named_with_the_command_that_grants_it(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], operation: str
) -> None:
    podlift_vertex.faults(HOLD)
    run = start() if operation in ("objects.list", "objects.download") else None
    podlift_vertex.faults(HOLD, {"kind": "deny", "operation": operation})
    podlift_vertex.forget_requests()
    before = len(made(podlift_vertex))
    with pytest.raises(PodliftError) as caught:
        start() if run is None else Run(run.plan).status()
    text = str(caught.value)
    assert "403" in text and f"gs://{podlift_vertex.bucket}" in text and "add-iam-policy-binding" in text
    assert asked(podlift_vertex, operation) <= 4, "what runs in parallel, and nothing is repeated"
    assert len(made(podlift_vertex)) == before


@pytest.mark.full
def test_who_may_not_read_the_settings_of_the_bucket_can_submit(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run]
) -> None:
    podlift_vertex.faults({"kind": "deny", "operation": "buckets.get"})
    assert start().wait(LIMIT_S).state is State.SUCCEEDED


# --- Answers of the create request that are lost, late or missing -----------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        ("status_before", 2),
        ("drop_before", 2),
        ("silent_before", 2),
        ("status_after", 1),
        ("drop_after", 1),
        ("silent_after", 1),
        ("latency", 1),
    ],
)
def test_whatever_becomes_of_the_create_request_there_is_one_job(
    podlift_vertex: Cloud,
    start: Callable[..., sdk.Run],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    requests: int,
) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._WRITE_S", 0.3)
    podlift_vertex.faults(HOLD, vertex(kind, "customJobs.create", nth=1, seconds=0.1))
    lines = heard("backends")
    run = start()
    until(lambda: asked(podlift_vertex, "customJobs.create") == requests)
    (job,) = made(podlift_vertex)
    assert (job.labels["podlift-run"], run.status().state) == (run.id, State.PENDING)
    assert [line.partition(":")[0] for line in lines[:1]] == (
        [] if kind == "latency" else ["Request 1 for a job in us-central1 got no answer"]
    )
    if kind.startswith("silent"):
        assert "has accepted the request, but did not answer within 0.3 s." in lines[0]


@pytest.mark.parametrize("kind", ["status_before", "drop_before", "silent_before", "drop_after", "silent_after"])
@pytest.mark.parametrize("operation", ["customJobs.get", "entries.list"])
def test_a_read_that_fails_once_is_repeated_and_nobody_notices(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch, kind: str, operation: str
) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._READ_S", 0.2)
    monkeypatch.setattr("sdk.backends.vertex.logs._TIMEOUT_S", 0.2)
    podlift_vertex.faults(HOLD)
    run = quick(start())
    podlift_vertex.faults(HOLD, vertex(kind, operation, nth=1))
    podlift_vertex.forget_requests()
    lines = heard()
    if operation == "customJobs.get":
        run._clock.sleep(1)
        assert run.status().reason is Reason.QUEUED
    else:
        assert list(run.logs()) == []
    # A request without an answer is recorded once its client has left.
    until(lambda: asked(podlift_vertex, operation) == 2)
    assert lines == []


# --- Waiting ----------------------------------------------------------------------------------------------------------

OUTAGES = {
    "the service has failed": [vertex("status_before", "customJobs.get")],
    "the service cuts connections": [vertex("drop_before", "customJobs.get")],
    "the service is silent": [vertex("silent_before", "customJobs.get")],
    "the service asks to slow down": [vertex("status_before", "customJobs.get", status=429, retry_after_s=20)],
    "the bucket has failed": [{"kind": "status_before"}],
    "the bucket cuts connections": [{"kind": "drop_before"}],
    "the bucket is silent": [{"kind": "silent_before"}],
    "nothing answers": [{"kind": "status_before"}, vertex("status_before")],
}


# The other service fails in the same way in another case; a request to slow down is a failure with a time, and a connection
# that is cut is silence that ends early (`test_vertex_runs` cuts one at a submit).
LIKE_ANOTHER = {
    "the service cuts connections",
    "the service has failed",
    "the service asks to slow down",
    "the bucket cuts connections",
    "the bucket is silent",
    "nothing answers",
}


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(rules, id=name, marks=[pytest.mark.full] * (name in LIKE_ANOTHER))
        for name, rules in OUTAGES.items()
    ],
)
def test_a_wait_outlives_minutes_without_an_answer_and_says_what_is_wrong(
    podlift_vertex: Cloud,
    start: Callable[..., sdk.Run],
    monkeypatch: pytest.MonkeyPatch,
    rules: list[dict[str, Any]],
) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._READ_S", 0.1)
    for user in ("records.sync.index", "backends.vertex.latest_job", "backends.vertex.waiting"):
        monkeypatch.setattr(f"sdk.{user}.SYNC_RETRY", IMPATIENT)
    podlift_vertex.faults(HOLD)
    run = quick(start())
    podlift_vertex.faults(HOLD, *rules)
    lines, clock = heard("backends.outages"), run._clock
    until_s, sleep = clock.now() + 300, clock.sleep
    over: list[float] = []

    def slept(seconds: float) -> None:
        sleep(seconds)
        if clock.now() > until_s and not over:
            over.append(clock.now())
            podlift_vertex.faults()

    monkeypatch.setattr(clock, "sleep", slept)
    assert run.wait().state is State.SUCCEEDED
    # One report for each service that does not answer, and one when it does again.
    expected = 4 if len(rules) == 2 else 2
    assert over and "cannot be read for " in lines[0] and len(lines) == expected
    assert f"emulator at 127.0.0.1:{podlift_vertex.port} " in lines[0]
    assert lines[-1].startswith("The service answers again, after ")
    assert len(made(podlift_vertex)) == 1


def test_a_wait_with_a_time_limit_ends_in_an_outage_with_the_reason(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    podlift_vertex.faults(HOLD)
    run = quick(start())
    podlift_vertex.faults(HOLD, {"kind": "status_before"})
    with pytest.raises(WaitTimeoutError, match=r"It continues\. It cannot be read now: .*has failed \(503\)"):
        run.wait(timeout_s=30)


@pytest.mark.full
def test_following_the_log_outlives_minutes_without_an_answer_and_yields_each_line_once(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import time\nfor n in range(30): print(n, flush=True); time.sleep(0.05)"
    run = Run(start(text).plan, QuickClock())
    found = run.logs(follow=True)
    shown = [next(found).text]
    busy = {"status": 503, "times": 60}
    podlift_vertex.faults(
        vertex("status_before", "entries.list", **busy), vertex("drop_after", "customJobs.get", times=9)
    )
    shown += [line.text for line in found]
    assert shown == [str(number) for number in range(30)]
    told = podlift_vertex.ask("GET", "/_faults")["faults"]
    assert [rule["fired"] for rule in told] == [60, 9]


# --- What becomes of jobs ---------------------------------------------------------------------------------------------


@pytest.mark.full
def test_an_expired_job_is_a_failed_run_that_says_so_and_is_resumed(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run]
) -> None:
    podlift_vertex.faults(vertex("expire", nth=1))
    run = start()
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason, status.vendor) == (State.FAILED, Reason.STOCKOUT, "JOB_STATE_EXPIRED")
    why = " ".join(run.why().split())
    assert "The job expired: no machine became available within its waiting time." in why
    assert why.endswith(f"Next: podlift resume {run.url}")
    assert len(made(podlift_vertex)) == 1, "nothing is started without being asked for"
    run.resume()
    assert run.wait(LIMIT_S).state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("event", "reason", "words"),
    [
        ("oom", Reason.OUT_OF_MEMORY, "A replica ran out of memory."),
        full_only("internal", Reason.INTERNAL, "had an internal error."),
        full_only("expire", Reason.STOCKOUT, "The job expired"),
    ],
)
def test_a_running_job_that_the_service_ends_is_explained(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], event: str, reason: Reason, words: str
) -> None:
    run = start(SLEEPS)
    running(run)
    (job,) = made(podlift_vertex)
    inject = {"oom": "run_out_of_memory", "internal": "fail", "expire": "expire"}[event]

    def ended() -> bool:
        # The service itself repeats a job twice after an internal error.
        getattr(podlift_vertex, inject)(job.name)
        return bool(made(podlift_vertex)[0].end_time)

    until(ended, run.status)
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason) == (State.FAILED, reason)
    assert words in run.why()
    assert len(made(podlift_vertex)) == 1


@pytest.mark.full
def test_a_worker_that_is_preempted_at_a_step_goes_on_in_the_same_job(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run]
) -> None:
    text = (
        "import time\nimport sdk\n"
        "task = sdk.context().task\n"
        "for step in range(1, 15): print('step', step, flush=True); time.sleep(0.1)\n"
    )
    podlift_vertex.faults(vertex("preempt", replica="workerpool1-0", writer="workerpool1-0", log="step 5$"))
    more = {"provisioning": "spot", "resources": sdk.Resources(workers=2), "retry": sdk.Retry(preemptions=None)}
    run = start(text, **more)
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (State.SUCCEEDED, 2)
    lines = [line.text for line in run.logs(task="worker-0")]
    assert lines.count("step 5") == 2 and lines[-1] == "step 14"
    assert "The machine of workerpool1-0 is being taken away." in run.why()
    assert len(made(podlift_vertex)) == 1


@pytest.mark.full
def test_a_region_without_machines_ends_a_preempted_run_with_the_reason(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run]
) -> None:
    run = start(SLEEPS, provisioning="spot")
    running(run)
    podlift_vertex.faults(vertex("stockout", region="us-central1"))
    (job,) = made(podlift_vertex)
    assert podlift_vertex.preempt(job.name)
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason) == (State.FAILED, Reason.PREEMPTED)
    assert "A spot machine was taken away, and no other was available." in run.why()


@pytest.mark.full
def test_a_replica_is_preempted_once_the_run_reports_a_step(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(SLEEPS, provisioning="spot")
    running(run)
    reports = iter([None, Progress(step=3), Progress(step=12)])
    monkeypatch.setattr(run, "progress", lambda: next(reports))
    assert podlift_vertex.preempt_at_step(run, 12)
    assert next(reports, "all were read") == "all were read"
    (job,) = made(podlift_vertex)
    said = [entry["textPayload"] for entry in podlift_vertex.entries(job.name, "service")]
    assert "The machine of workerpool0-0 is being taken away." in said
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is State.CANCELLED
    assert not podlift_vertex.preempt_at_step(run, 12), "it has ended"


# --- The log ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_log_that_lost_everything_is_read_from_the_run_and_says_so(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run]
) -> None:
    podlift_vertex.faults(vertex("lost_line"))
    run = start("print('here'); raise ValueError('no data')")
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason) == (State.FAILED, Reason.USER_ERROR)
    assert "ValueError: no data" in run.why()
    said = heard("backends")
    lines = [line.text for line in run.logs()]
    assert "here" in lines and "ValueError: no data" in lines
    assert any("The log service has no lines of this job" in line for line in said)


@pytest.mark.full
def test_late_lines_are_followed_once_each(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdk.backends.vertex import logs

    monkeypatch.setattr(logs, "EMULATOR_POLLING", logs.Polling(poll_s=0.05, hold_s=0.0, settle_s=1.0))
    podlift_vertex.faults(vertex("late_line", log="[3-5]$", seconds=0.6))
    run = start("import time\nfor n in range(8): print(n, flush=True); time.sleep(0.1)")
    lines = [line.text for line in run.logs(follow=True)]
    assert sorted(lines) == [str(number) for number in range(8)]
    assert lines != sorted(lines), "none was late"


def test_a_silent_log_service_delays_an_explanation_by_seconds_and_no_status(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.backends.vertex.logs._SHORT_S", 0.2)
    podlift_vertex.faults(HOLD, vertex("silent_before", "entries.list"))
    run = start()
    why = " ".join(run.why().split())
    assert "The logs cannot be read: ReadTimeout" in why and "use the quota that it needs" in why
    # The emulator may take the request after the client has given up.
    until(lambda: asked(podlift_vertex, "entries.list"))
    assert asked(podlift_vertex, "entries.list") == 1
    assert run.status().state is State.PENDING


@pytest.mark.full
def test_logs_that_cannot_be_read_now_are_read_from_the_run(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run]
) -> None:
    run = Run(start().plan, QuickClock())
    assert run.wait().state is State.SUCCEEDED
    podlift_vertex.faults(vertex("status_before", "entries.list"))
    said = heard("backends")
    assert [line.text for line in run.logs()] == ["here"]
    assert any("The logs cannot be read: 503" in line for line in said)


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_command_waits_on_and_prints_why_on_stderr(
    podlift_vertex: Cloud,
    start: Callable[..., sdk.Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from sdk.cli.watch import follow

    monkeypatch.setattr("sdk.storage.retry._REPORT_S", 0.0)
    monkeypatch.setattr("sdk.records.sync.index.SYNC_RETRY", RetryPolicy(total_s=0.2, first_s=0.2))
    run = start("import time; time.sleep(1)")
    podlift_vertex.faults({"kind": "status_before", "operation": "objects.list", "times": 20})
    assert follow(run, run.id) == 0
    shown = capsys.readouterr().err
    assert f"The run {run.id} cannot be read for " in shown and "The service answers again" in shown
    assert f"{run.id} is done after" in shown


@pytest.mark.full
def test_the_command_reports_the_end_although_the_rest_cannot_be_read(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    from sdk.cli.watch import conclude

    run = start("raise SystemExit(1)")
    status = run.wait(LIMIT_S)

    def unread() -> str:
        raise OutcomeUnknownError("The service does not answer.")

    run.why = unread  # type: ignore[method-assign]
    assert conclude(run, status, run.id) == 1
    assert f"{run.id} is FAILED (user_error). Why cannot be read: The service" in capsys.readouterr().err


def test_an_unanswered_status_says_so_and_does_not_hang(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    podlift_vertex.faults(HOLD)
    run = start()
    monkeypatch.setattr("sdk.backends.vertex.client._READ_S", 0.1)
    podlift_vertex.faults(HOLD, vertex("silent_before", "customJobs.get"))
    with pytest.raises(OutcomeUnknownError, match=r"has accepted the request, but did not answer within 0\.1 s"):
        Run(run.plan, QuickClock()).status()
    podlift_vertex.faults(HOLD, {"kind": "silent_before"})
    monkeypatch.setattr("sdk.records.sync.index.SYNC_RETRY", IMPATIENT)
    monkeypatch.setattr("sdk.backends.vertex.latest_job.SYNC_RETRY", IMPATIENT)
    with pytest.raises(StoreError, match="did not respond in time"):
        Run(run.plan, QuickClock()).status()
