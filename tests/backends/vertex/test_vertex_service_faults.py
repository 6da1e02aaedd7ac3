"""Each fault of the emulated service: what the user reads, what is sent again and what is not, and that one job is made."""

from __future__ import annotations

import pytest
from support import LIMIT_S, full_only, heard, made, until
from vertex_faults import HOLD, QuickClock, Start, asked, only_run, vertex

import sdk
from sdk import Reason, State, api
from sdk.backends.vertex.client import OutcomeUnknownError, VertexRejectedError
from sdk.run import Run
from sdk.status import Progress
from sdk.storage.retry import RetryPolicy
from sdk.testing.vertex import Cloud

SLEEPS = "import time; print('started', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def _lost_jobs_are_searched_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdk.backends.vertex.create_job.SEARCH_DELAYS_S", (0.0, 0.05))


def running(run: sdk.Run) -> None:
    until(lambda: any(line.text == "started" for line in run.logs()), run.status)


# --- 403 ------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("kind", [full_only("deny"), "status_before"])
def test_a_lost_answer_and_a_list_that_cannot_be_read_leave_open_whether_there_is_a_job_and_it_is_found_later(
    podlift_vertex: Cloud, start: Start, kind: str, monkeypatch: pytest.MonkeyPatch
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
    podlift_vertex: Cloud, start: Start, monkeypatch: pytest.MonkeyPatch
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


# --- Answers of the create request that are lost, late or missing -----------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "requests"), [full_only("status_before", 2), ("silent_before", 2), ("silent_after", 1)]
)
def test_whatever_becomes_of_the_create_request_there_is_one_job(
    podlift_vertex: Cloud, start: Start, monkeypatch: pytest.MonkeyPatch, kind: str, requests: int
) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._WRITE_S", 0.3)
    podlift_vertex.faults(HOLD, vertex(kind, "customJobs.create", nth=1))
    lines = heard("backends")
    run = start()
    until(lambda: asked(podlift_vertex, "customJobs.create") == requests)
    (job,) = made(podlift_vertex)
    assert (job.labels["podlift-run"], run.status().state) == (run.id, State.PENDING)
    assert lines[0].startswith("Request 1 for a job in us-central1 got no answer:")
    if kind.startswith("silent"):
        assert "has accepted the request, but did not answer within 0.3 s." in lines[0]


# --- Waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_following_the_log_outlives_minutes_without_an_answer_and_yields_each_line_once(
    podlift_vertex: Cloud, start: Start, monkeypatch: pytest.MonkeyPatch
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
@pytest.mark.parametrize(
    ("event", "reason", "words"),
    [
        ("run_out_of_memory", Reason.OUT_OF_MEMORY, "A replica ran out of memory."),
        ("fail", Reason.INTERNAL, "had an internal error."),
        ("expire", Reason.STOCKOUT, "The job expired: no machine became available within its waiting time."),
    ],
)
def test_a_running_job_that_the_service_ends_is_explained(
    podlift_vertex: Cloud, start: Start, event: str, reason: Reason, words: str
) -> None:
    run = start(SLEEPS)
    running(run)
    (job,) = made(podlift_vertex)

    def ended() -> bool:
        # The service itself repeats a job twice after an internal error.
        getattr(podlift_vertex, event)(job.name)
        return bool(made(podlift_vertex)[0].end_time)

    until(ended, run.status)
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason) == (State.FAILED, reason)
    assert words in " ".join(run.why().split())
    assert len(made(podlift_vertex)) == 1


@pytest.mark.full
def test_a_replica_is_preempted_once_the_run_reports_a_step(
    podlift_vertex: Cloud, start: Start, monkeypatch: pytest.MonkeyPatch
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


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_command_waits_on_and_prints_why_on_stderr(
    podlift_vertex: Cloud, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    podlift_vertex: Cloud, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    from sdk.cli.watch import conclude

    run = start("raise SystemExit(1)")
    status = run.wait(LIMIT_S)

    def unread() -> str:
        raise OutcomeUnknownError("The service does not answer.")

    run.why = unread  # type: ignore[method-assign]
    assert conclude(run, status, run.id) == 1
    assert f"{run.id} is FAILED (user_error). Why cannot be read: The service" in capsys.readouterr().err
