"""What `podlift diff` says about two plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk import backends
from sdk.job.plan import Plan
from sdk.planning import diff
from sdk.planning.diff import Change


def compared(first: Plan, second: Plan) -> list[Change]:
    bodies = [backends.load(plan.backend).render(diff.anonymous(plan)).body for plan in (first, second)]
    return diff.compare(first, second, (bodies[0], bodies[1]))


def lines(first: Plan, second: Plan) -> list[str]:
    return [f"{change.section} {change}" for change in compared(first, second)]


def test_two_plans_of_the_same_job_do_not_differ_although_their_run_ids_do(write: Any) -> None:
    write("train.py", "print(1)")
    for more in ({}, {"backend": "vertex"}):
        first, second = (sdk.plan("train.py", workers=2, **more) for _ in range(2))
        assert first.run_id != second.run_id
        assert compared(first, second) == []


def test_files_that_were_added_changed_and_removed_are_named(write: Any) -> None:
    for name in ("train.py", "old.py", "pyproject.toml"):
        write(name)
    first = sdk.plan("train.py")
    write("train.py", "print(2)")
    write("new.py")
    Path("old.py").unlink()
    assert lines(first, sdk.plan("train.py")) == ["code + new.py", "code - old.py", "code ~ train.py"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"workers": 2}, {"workers": 3}, ["job ~ resources.workers: 2 -> 3", "tasks + worker-1"]),
        ({"args": ["a"]}, {"args": ["a", "b"]}, ['entry + argv.1: "b"', 'job + args.1: "b"']),
        ({"env": {"A": "1", "B": "2"}}, {"env": {"B": "2"}}, ['job - env.A: "1"']),
        ({"env": {"A": "1"}}, {"env": {"A": sdk.FromCaller()}}, ['job ~ env.A: "1" -> {"from_caller": true}']),
        ({"name": "one"}, {"name": "two"}, ['target ~ name: "one" -> "two"']),
        ({"timeout": None}, {"timeout": 60.0}, ["job ~ limits.timeout_s: null -> 60.0"]),
    ],
)
def test_the_requested_settings_are_compared_value_by_value(write, monkeypatch, before, after, said) -> None:
    write("train.py", "print(1)")
    monkeypatch.setenv("A", "mine")
    changes = lines(*(sdk.plan("train.py", **given) for given in (before, after)))
    assert set(said) <= set(changes), changes


def test_the_requests_are_compared_and_so_are_price_and_target(write: Any) -> None:
    write("train.py", "print(1)")
    first = sdk.plan("train.py", backend=sdk.Vertex(project="project-one"))
    second = sdk.plan("train.py", backend=sdk.Vertex(project="project-two", image="img"), accelerator="l4")
    said = lines(first, second)
    for part in (
        'job ~ resources.accelerator: "cpu" -> "l4"',
        'target ~ project: "project-one" -> "project-two"',
        'request ~ jobSpec.workerPoolSpecs.0.machineSpec.machineType: "n1-standard-4" -> "g2-standard-4"',
        'request + jobSpec.workerPoolSpecs.0.machineSpec.acceleratorType: "NVIDIA_L4"',
        'request ~ jobSpec.workerPoolSpecs.0.containerSpec.imageUri: "<image>" -> "img"',
    ):
        assert part in said, said
    assert any(line.startswith("price - price: ") for line in said)
    assert any(line.startswith("findings - warning: No container image") for line in said)


def test_variables_of_a_request_are_told_apart_by_their_names(write: Any) -> None:
    write("train.py", "print(1)")
    first, second = (
        sdk.plan(sdk.Job("train.py", env=env), backend="vertex") for env in ({"Z": "1"}, {"A": "0", "Z": "2"})
    )
    env = "request {} jobSpec.workerPoolSpecs.0.containerSpec.env."
    said = [line for line in lines(first, second) if line.startswith("request")]
    assert sorted(said) == sorted([f'{env.format("+")}A: "0"', f'{env.format("~")}Z: "1" -> "2"'])


def test_a_program_reads_the_sections_and_whether_there_are_any(write: Any) -> None:
    write("train.py", "print(1)")
    first, second = sdk.plan("train.py", workers=1), sdk.plan("train.py", workers=2)
    changes = json.loads(json.dumps(diff.as_json(compared(first, second))))
    assert changes["same"] is False
    assert changes["job"] == [{"path": "resources.workers", "before": 1, "after": 2, "kind": "changed"}]
    assert changes["tasks"] == [{"path": "worker-0", "before": None, "after": None, "kind": "added"}]
    assert diff.as_json([]) == {"same": True}
