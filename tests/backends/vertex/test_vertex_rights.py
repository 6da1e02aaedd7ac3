"""The rights of a keeper: asked before a submit, tested by the keeper itself, and reported where a user looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, until
from test_vertex_online import said

import sdk
from sdk.backends.vertex.account import rights

KEEPER, PROGRAM = "keeper@podlift.iam.gserviceaccount.com", "train@podlift.iam.gserviceaccount.com"
HOLD = {"api": "vertex", "kind": "hold", "display_name": "^program-[a-z0-9]+$"}


def denied(operation: str, api: str = "vertex") -> dict[str, Any]:
    return {"api": api, "kind": "deny", "operation": operation}


@pytest.fixture
def plan(cloud, project) -> Callable[..., sdk.Plan]:
    Path("program.py").write_text("print('here')")

    def make(**fields: Any) -> sdk.Plan:
        online = fields.pop("online", True)
        accounts = {"keeper_service_account": KEEPER, "service_account": PROGRAM}
        backend = cloud.backend(keeper=True, **accounts, **fields)
        return sdk.plan("program.py", backend=backend, retry_infrastructure=2, online=online)

    return make


def test_an_online_plan_says_that_the_account_has_its_rights(plan) -> None:
    assert f"The keeper's account {KEEPER} has the rights that it needs" in said(plan(), "note")
    assert "rights that it needs" not in said(plan(online=False), "note")


def test_a_plan_refuses_a_keeper_that_could_not_submit_and_names_all_that_it_lacks(cloud, plan) -> None:
    cloud.faults(denied("customJobs.cancel"), denied("serviceAccounts.actAs"), denied("objects.insert", "gcs"))
    with pytest.raises(sdk.InputError) as caught:
        plan()
    told = str(caught.value)
    assert (
        f"The keeper could not submit jobs: {KEEPER} lacks aiplatform.customJobs.cancel in the project podlift" in told
    )
    for lacking in (f"actAs on {PROGRAM}", f"actAs on {KEEPER}", "storage.objects.create on gs://podlift-runs"):
        assert lacking in told
    assert "customJobs.list" not in told


def test_rights_that_may_not_be_read_are_unknown(cloud, plan) -> None:
    cloud.faults(denied("iam.troubleshoot"))
    told = said(plan(), "note")
    assert (
        f"It is not known whether the keeper's account {KEEPER} has aiplatform.customJobs.create in the project" in told
    )
    assert "403: Permission 'aiplatform.iam.troubleshoot' denied" in told
    assert "rights that it needs" not in told


def test_an_account_tests_its_own_permissions_with_one_request_for_each_resource(cloud, plan) -> None:
    made = plan(online=False)
    kept = made.target.kept_by(made.job.limits, made.job.retry)
    assert kept is not None
    wanted = rights.resources(kept, "podlift", "podlift-runs")
    assert [each.words for each in wanted] == [
        "in the project podlift",
        f"on {PROGRAM}",
        f"on {KEEPER}",
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
    cloud.faults(HOLD, {**denied("customJobs.create"), "nth": 3})
    run = sdk.submit(made)
    until(lambda: run.status().findings, run.why)
    (text,) = run.status().findings
    assert text.startswith(
        f"The keeper cannot submit the next job: its account {KEEPER} lacks aiplatform.customJobs.create"
    )
    assert "podlift wait" in text
    assert "Finding: The keeper cannot submit the next job" in run.why()
    cloud.faults()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
