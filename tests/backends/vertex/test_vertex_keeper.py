"""The keeper submits the next jobs of a run that no client waits for; its container needs no package but podlift's own."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import support
from support import LIMIT_S, until
from test_vertex_online import said
from vertex_faults import HOLD, vertex

import sdk
from sdk import State
from sdk.backends.containers import upload_archives
from sdk.backends.vertex.account import rights
from sdk.backends.vertex.job import start_run
from sdk.backends.vertex.job.create_job import JobNotCreatedError
from sdk.clock import SystemClock
from sdk.errors import PodliftError
from sdk.job import plan_text
from sdk.testing.vertex import Cloud

ACCOUNT, PROGRAM = "keeper@podlift.iam.gserviceaccount.com", "train@podlift.iam.gserviceaccount.com"
KEPT = {"keeper": True, "keeper_service_account": ACCOUNT}
IMAGE, SMALL = "podlift/emulated", "us-docker.pkg.dev/podlift/images/small:1"
PLACES = ("us-central1:spot", "us-central1:standard")
# The jobs of the run get no machines, and its keeper gets one.
STOCKOUT = vertex("stockout", times=3, display_name="program-[a-z0-9]+$")
# Seconds within which the keeper ends after the run.
ENDS_S = 60.0


@pytest.fixture
def planned(cloud, project) -> Callable[..., sdk.Plan]:
    Path("program.py").write_text("print('here')")
    job = sdk.Job("program.py", retry=sdk.Retry(infrastructure=3, preemptions=None))
    places = {"regions": PLACES}
    return lambda online=False, **more: sdk.plan(job, backend=cloud.backend(**{**places, **more}), online=online)


def made(cloud: Cloud, *, keeper: bool) -> list[Any]:
    """Return the keepers, or the jobs of runs, the first one first."""
    return [job for job in support.made(cloud) if job.display_name.endswith("-keeper") is keeper]


def image_of(job: Any) -> str:
    return str(job.job_spec.worker_pool_specs[0].container_spec.image_uri)


@pytest.mark.full
def test_a_keeper_continues_an_unattended_run_in_the_next_place_and_ends_with_it(cloud, planned) -> None:
    cloud.faults(STOCKOUT)
    run = sdk.submit(planned(**KEPT, image={"cpu": IMAGE, "keeper": SMALL}))
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
    cloud.faults(vertex("status_before", "customJobs.create", status=403, nth=1))
    with pytest.raises(PodliftError, match=r"was not started, because .* rejected its keeper in us-central1"):
        sdk.submit(planned(**KEPT))
    assert made(cloud, keeper=False) == made(cloud, keeper=True) == []
    # The message said that it was not started: no waiting client may start it later.
    (info,) = sdk.runs(root=f"gs://{cloud.bucket}/podlift")
    assert info.status.state is State.FAILED
    # Nor may a keeper from a request that was lost before.
    run = sdk.attach(info.url)
    late = start_run.creation(run.plan, 1, SystemClock(), upload_archives(run.plan))
    with pytest.raises(JobNotCreatedError):
        late.attempt()


def test_a_lost_reply_makes_no_second_keeper_which_has_the_runs_network_and_key(cloud, planned) -> None:
    cloud.faults(HOLD, vertex("drop_after", "customJobs.create", nth=1))
    network, key = "projects/12/global/networks/vpc", "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
    run = sdk.submit(planned(**KEPT, regions=PLACES[1:], network=network, kms_key=key))
    assert run.status().state is State.PENDING
    for keeper in (True, False):
        (job,) = made(cloud, keeper=keeper)
        assert (job.job_spec.network, job.encryption_spec.kms_key_name, image_of(job)) == (network, key, IMAGE)


def test_a_keeper_without_an_account_is_refused_with_the_reason(planned) -> None:
    with pytest.raises(sdk.InputError) as caught:
        planned(keeper=True)
    assert "Vertex AI's default one cannot create jobs from inside a job" in str(caught.value)
    assert "vertex_keeper_service_account=NAME@PROJECT" in str(caught.value)


def test_the_plan_lists_the_cost_and_the_rights_of_the_keeper(planned) -> None:
    def shown(**more: Any) -> dict[str, str]:
        return dict(plan_text.lines(replace(planned(**more), emulator="")))

    ten_hours = {**KEPT, "keeper": "10h"}
    with_one = shown(**ten_hours)
    assert with_one["submitted by"].startswith("the keeper, or a process that waits")
    what = "one n1-standard-4 in us-central1, which ends with the run, after 10 h at most: 0.22 USD an hour"
    assert with_one["keeper"] == f"{what}, 2.22 USD at most"
    for right in ("customJobs.create, get, list and cancel", "actAs", f"as {ACCOUNT}", "gs://podlift-runs only"):
        assert right in with_one["its rights"]
    small = shown(**KEPT, image={"cpu": IMAGE, "keeper": SMALL})["keeper"]
    assert small.startswith(f"one n1-standard-4 in us-central1 with the image {SMALL}, which ends with the run")
    assert shown(**ten_hours, image={"cpu": IMAGE, "keeper": IMAGE})["keeper"] == with_one["keeper"]
    (unused,) = [each.message for each in planned(keeper_service_account=ACCOUNT).findings if each.level == "warning"]
    assert unused.startswith("vertex_keeper_service_account: no effect without a keeper")
    without = shown()
    assert "With --detach and without one, the run ends with its job" in without["submitted by"]
    assert "keeper" not in without


def test_a_keeper_is_true_false_or_its_longest_wait() -> None:
    for given in ("true", 1, True):
        assert sdk.Vertex(keeper=given).keeper is True
    assert [sdk.Vertex(keeper=given).keeper for given in ("False", "0", "2d", 90.0)] == [False, False, "2d", "1m30s"]
    for wrong in ("perhaps", "90", 2, "-1h", "5s", 0.00001, None):
        with pytest.raises(
            sdk.InputError, match="keeper: must be true, false or the longest wait, of a minute at least"
        ):
            sdk.Vertex(keeper=wrong)  # type: ignore[arg-type]
    entry = r"such as 7d \(--vertex-keeper true, then the entry\)\. Received: 'train\.py'"
    with pytest.raises(sdk.InputError, match=entry):
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
    assert kept.life_s == life_s
    # Its job may run for a little longer, which it may cost.
    assert kept.limit_s == kept.price.timeout_s == min(life_s + 600.0, 7 * 86400.0)


def denied(operation: str, api: str = "vertex") -> dict[str, Any]:
    return {"api": api, "kind": "deny", "operation": operation}


@pytest.fixture
def plan(planned) -> Callable[..., sdk.Plan]:
    return partial(planned, online=True, service_account=PROGRAM, **KEPT)


def test_a_plan_refuses_a_keeper_that_could_not_submit_and_names_all_that_it_lacks(cloud, plan) -> None:
    cloud.faults(denied("customJobs.cancel"), denied("serviceAccounts.actAs"), denied("objects.insert", "gcs"))
    with pytest.raises(sdk.InputError) as caught:
        plan()
    told = str(caught.value)
    assert f"The keeper could not submit jobs: {ACCOUNT} lacks aiplatform.customJobs.cancel in the project" in told
    for lacking in (f"actAs on {PROGRAM}", f"actAs on {ACCOUNT}", "storage.objects.create on gs://podlift-runs"):
        assert lacking in told
    assert "customJobs.list" not in told


def test_an_online_plan_says_that_the_account_has_its_rights_if_they_may_be_read(cloud, plan) -> None:
    assert f"The keeper's account {ACCOUNT} has the rights that it needs" in said(plan(), "note")
    assert "rights that it needs" not in said(plan(online=False), "note")
    cloud.faults(denied("iam.troubleshoot"))
    told = said(plan(), "note")
    assert f"not known whether the keeper's account {ACCOUNT} has aiplatform.customJobs.create in the project" in told
    assert "403: Permission 'aiplatform.iam.troubleshoot' denied" in told
    assert "rights that it needs" not in told


def test_an_account_tests_its_own_permissions_with_one_request_for_each_resource(cloud, plan) -> None:
    made = plan(online=False)
    kept = made.target.kept_by(made.job.limits, made.job.retry)
    wanted = rights.resources(kept, "podlift", "podlift-runs")
    assert [each.words for each in wanted] == [
        "in the project podlift",
        f"on {PROGRAM}",
        f"on {ACCOUNT}",
        "on gs://podlift-runs",
    ]
    cloud.faults(denied("customJobs.create"), denied("projects.testIamPermissions"), denied("objects.list", "gcs"))
    before = cloud.requests().total
    found = rights.on_each(wanted, rights.mine)
    assert cloud.requests().total - before <= len(wanted) + 1
    assert found.missing == ("storage.objects.list on gs://podlift-runs",)
    assert found.unknown == tuple(f"{each} in the project podlift" for each in rights.JOBS)


@pytest.mark.full
def test_a_keeper_without_a_right_says_so_in_the_status_of_its_run(cloud, plan) -> None:
    made = plan(online=False)
    # Its own creation and the creation of the first job have begun when it loses the right.
    cloud.faults(vertex("hold", display_name="^program-[a-z0-9]+$"), {**denied("customJobs.create"), "nth": 3})
    run = sdk.submit(made)
    until(lambda: run.status().findings, run.why)
    (text,) = run.status().findings
    cannot = "The keeper cannot submit the next job"
    assert text.startswith(f"{cannot}: its account {ACCOUNT} lacks aiplatform.customJobs.create")
    assert "podlift wait" in text
    assert f"Finding: {cannot}" in run.why()
    cloud.faults()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
