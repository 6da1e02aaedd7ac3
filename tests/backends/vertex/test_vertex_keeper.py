"""The keeper submits the next jobs of a run that no client waits for; its container needs no package but podlift's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import support
from support import until
from vertex_faults import HOLD

import sdk
from sdk import State
from sdk.backends.containers import upload_archives
from sdk.backends.vertex.job import start_run
from sdk.backends.vertex.job.create_job import JobNotCreatedError
from sdk.clock import SystemClock
from sdk.errors import PodliftError
from sdk.job import plan_text
from sdk.testing.vertex import Cloud

Planned = Callable[..., sdk.Plan]

ACCOUNT = "keeper@podlift.iam.gserviceaccount.com"
IMAGE, SMALL = "podlift/emulated", "us-docker.pkg.dev/podlift/images/small:1"
PLACES = ("us-central1:spot", "us-central1:standard")
# The jobs of the run get no machines, and its keeper gets one.
STOCKOUT = {"api": "vertex", "kind": "stockout", "times": 3, "display_name": "program-[a-z0-9]+$"}
RETRY = sdk.Retry(infrastructure=3, preemptions=None)
# Seconds within which the keeper ends after the run.
ENDS_S = 60.0


@pytest.fixture
def planned(cloud, project) -> Callable[..., sdk.Plan]:
    Path("program.py").write_text("print('here')")

    def plan(**more: Any) -> sdk.Plan:
        fields = {"regions": PLACES, **more}
        return sdk.plan(sdk.Job("program.py", retry=RETRY), backend=cloud.backend(**fields))

    return plan


def made(cloud: Cloud, *, keeper: bool) -> list[Any]:
    """Return the keepers, or the jobs of runs, the first one first."""
    return [job for job in support.made(cloud) if job.display_name.endswith("-keeper") is keeper]


def image_of(job: Any) -> str:
    return str(job.job_spec.worker_pool_specs[0].container_spec.image_uri)


@pytest.mark.full
def test_a_keeper_continues_an_unattended_run_in_the_next_place_and_ends_with_it(cloud, planned) -> None:
    cloud.faults(STOCKOUT)
    run = sdk.submit(planned(keeper=True, keeper_service_account=ACCOUNT, image={"cpu": IMAGE, "keeper": SMALL}))
    until(lambda: run.status().state.terminal, run.why)
    ended = time.monotonic()
    assert run.status().state is State.SUCCEEDED
    states = [job.state.name for job in made(cloud, keeper=False)]
    assert states == ["JOB_STATE_FAILED", "JOB_STATE_SUCCEEDED"]
    until(lambda: made(cloud, keeper=True)[0].state.name == "JOB_STATE_SUCCEEDED")
    assert time.monotonic() - ended < ENDS_S
    (keeper,) = made(cloud, keeper=True)
    spec = keeper.job_spec
    assert spec.service_account == ACCOUNT
    assert spec.worker_pool_specs[0].machine_spec.machine_type == "n1-standard-4"
    assert spec.scheduling.timeout.total_seconds() <= 7 * 86400
    assert image_of(keeper) == SMALL
    assert {image_of(job) for job in made(cloud, keeper=False)} == {IMAGE}


def test_a_keeper_that_is_rejected_lets_no_run_begin(cloud, planned) -> None:
    denied = {"api": "vertex", "kind": "status_before", "operation": "customJobs.create", "status": 403, "nth": 1}
    cloud.faults(denied)
    with pytest.raises(PodliftError, match=r"was not started, because .* rejected its keeper in us-central1"):
        sdk.submit(planned(keeper=True, keeper_service_account=ACCOUNT))
    assert made(cloud, keeper=False) == made(cloud, keeper=True) == []
    # The message said that it was not started: no waiting client may start it later.
    (info,) = sdk.runs(root=f"gs://{cloud.bucket}/podlift")
    assert info.status is not None
    assert info.status.state is State.FAILED
    # Nor may a keeper from a request that was lost before.
    run = sdk.attach(info.url)
    late = start_run.creation(run.plan, 1, SystemClock(), upload_archives(run.plan))
    with pytest.raises(JobNotCreatedError):
        late.attempt()


def test_a_lost_reply_makes_no_second_keeper_which_has_the_runs_network_and_key(cloud, planned) -> None:
    cloud.faults(HOLD, {"api": "vertex", "kind": "drop_after", "operation": "customJobs.create", "nth": 1})
    network, key = "projects/12/global/networks/vpc", "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
    run = sdk.submit(
        planned(regions=PLACES[1:], keeper=True, keeper_service_account=ACCOUNT, network=network, kms_key=key)
    )
    assert run.status().state is State.PENDING
    for keeper in (True, False):
        (job,) = made(cloud, keeper=keeper)
        assert (job.job_spec.network, job.encryption_spec.kms_key_name, image_of(job)) == (network, key, IMAGE)


def test_a_keeper_without_an_account_is_refused_with_the_reason(planned) -> None:
    with pytest.raises(sdk.InputError) as caught:
        planned(keeper=True)
    assert "Vertex AI's default one cannot create jobs from inside a job" in str(caught.value)
    assert "vertex_keeper_service_account=NAME@PROJECT" in str(caught.value)


def test_the_plan_lists_the_cost_and_the_rights_of_the_keeper(planned, monkeypatch) -> None:
    def shown(**more: Any) -> dict[str, str]:
        return dict(plan_text.lines(replace(planned(**more), emulator="")))

    with_one = shown(keeper="10h", keeper_service_account=ACCOUNT)
    assert with_one["submitted by"].startswith("the keeper, or a process that waits")
    what = "one n1-standard-4 in us-central1, which ends with the run, after 10 h at most: 0.22 USD an hour"
    assert with_one["keeper"] == f"{what}, 2.22 USD at most"
    for right in ("customJobs.create, get, list and cancel", "actAs", f"as {ACCOUNT}", "gs://podlift-runs only"):
        assert right in with_one["its rights"]
    small = shown(keeper=True, keeper_service_account=ACCOUNT, image={"cpu": IMAGE, "keeper": SMALL})["keeper"]
    assert small.startswith(f"one n1-standard-4 in us-central1 with the image {SMALL}, which ends with the run")
    same = shown(keeper="10h", keeper_service_account=ACCOUNT, image={"cpu": IMAGE, "keeper": IMAGE})
    assert same["keeper"] == with_one["keeper"]
    (unused,) = [each.message for each in planned(keeper_service_account=ACCOUNT).findings if each.level == "warning"]
    assert unused.startswith("vertex_keeper_service_account: no effect without a keeper")
    without = shown()
    assert "With --detach and without one, the run ends with its job" in without["submitted by"]
    assert "keeper" not in without


def test_a_keeper_is_true_false_or_its_longest_wait() -> None:
    for given, kept in (
        ("true", True),
        ("False", False),
        (1, True),
        ("0", False),
        ("2d", "2d"),
        (90.0, "1m30s"),
        (True, True),
    ):
        assert sdk.Vertex(keeper=given).keeper == kept
    for wrong in ("perhaps", "90", 2, "-1h", "5s", 0.00001, None):
        with pytest.raises(
            sdk.InputError, match="keeper: must be true, false or the longest wait, of a minute at least"
        ):
            sdk.Vertex(keeper=wrong)  # type: ignore[arg-type]
    with pytest.raises(
        sdk.InputError, match=r"such as 7d \(--vertex-keeper true, then the entry\)\. Received: 'train\.py'"
    ):
        sdk.Vertex(keeper="train.py")


@pytest.mark.parametrize(
    ("limits", "retry", "keeper", "life_s"),
    [
        (sdk.Limits(timeout_s=3600.0), sdk.Retry(infrastructure=3, preemptions=6), True, 3600.0 * 10),
        (sdk.Limits(timeout_s=3600.0), sdk.Retry(preemptions=None), True, 7 * 86400.0),
        (sdk.Limits(), sdk.Retry(preemptions=1), True, 7 * 86400.0),
        (sdk.Limits(timeout_s=86400.0), sdk.Retry(preemptions=20), True, 7 * 86400.0),
        (sdk.Limits(timeout_s=3600.0), sdk.Retry(), "2h", 7200.0),
    ],
)
def test_a_keeper_lives_as_long_as_the_attempts_may_take(limits, retry, keeper, life_s) -> None:
    kept = sdk.Vertex(keeper=keeper, service_account=ACCOUNT).kept_by(limits, retry)
    assert kept is not None
    assert kept.life_s == life_s
    # Its job may run for a little longer, which it may cost.
    assert kept.limit_s == kept.price.timeout_s == min(life_s + 600.0, 7 * 86400.0)
