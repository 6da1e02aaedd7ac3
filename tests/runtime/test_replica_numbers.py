"""What one replica counts is either counted for all replicas, or a finding with the change to make."""

import json
from dataclasses import replace

import pytest
from support import PROGRAMS, said

import sdk
from sdk.job.payload import Drill, Kill

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]

PROGRAM = PROGRAMS / "replica_numbers.py"
OUTSIDE = "was made outside strategy.scope(): each of the 2 tasks has its own one, which counts the examples"
OVERWRITES = "in each step instead of adding to it, and the values of all 2 replicas are added up when it is read"
ADDED_UP = ", and the optimizer adds up the gradients of all 2 replicas"
AVERAGES = f"averages the loss over the examples of one replica{ADDED_UP}"
ADDS = f"adds a loss that does not depend on the examples{ADDED_UP}"


def trained(kind, workers, root):
    run = sdk.submit(sdk.Job(PROGRAM, args=[kind], resources=sdk.Resources(workers=workers)), root=root)
    run.result(300)
    return run


def numbers(run, task="chief-0"):
    (line,) = (line for line in said(run, task) if line.startswith("NUMBERS "))
    return json.loads(line.removeprefix("NUMBERS "))


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    return {n: trained("right", n, tmp_path_factory.mktemp(f"right{n}")) for n in (1, 2)}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    return {n: trained("wrong", n, tmp_path_factory.mktemp(f"wrong{n}")) for n in (1, 2)}


def test_two_workers_count_as_one_in_metrics_made_for_them_or_cured(right):
    expected = numbers(right[1])
    assert expected["outside_fit"]["outside"] == 67.0
    for task in ("chief-0", "worker-0"):
        found = numbers(right[2], task)
        assert found.keys() == expected.keys()
        for case, values in expected.items():
            assert found[case] == pytest.approx(values, rel=2e-6), case


def test_a_number_of_replicas_without_an_exact_inverse_has_no_finding_either(tmp_path):
    (about_the_batch,) = trained("right", 3, tmp_path).status().findings
    assert about_the_batch.startswith("A batch of 32 examples is not a multiple of 3 replicas")


def test_a_program_that_is_right_has_no_findings_and_a_log_of_the_cured_metrics(right):
    assert right[1].status().findings == right[2].status().findings == ()
    log = [line.text for line in right[2].logs(task="chief-0")]
    assert "podlift: the metric 'outside' was made outside strategy.scope(): counts the examples of all 2 tasks" in log
    kept = "keeps the largest value: of 2 replicas too, instead of the sum of theirs"
    assert f"podlift: The metric 'extremes' {kept}" in log


def test_a_run_that_is_killed_inside_an_epoch_keeps_the_extremes_of_that_epoch(tmp_path):
    job = sdk.Job(
        PROGRAM,
        args=["interrupted"],
        resources=sdk.Resources(workers=2),
        checkpoints=sdk.Checkpoints(every_steps=1, on_busy="block"),
        retry=sdk.Retry(infrastructure=1, preemptions=1),
    )
    plan = sdk.plan(job, root=tmp_path / "killed")
    kills = (Kill(task=plan.tasks[0], point="step", number=7),)  # the third step of the second epoch
    killed = sdk.submit(replace(plan, drill=Drill(seed=1, kills=kills)))
    killed.result(300)
    assert killed.status().attempts == 2
    undisturbed = numbers(trained("interrupted", 1, tmp_path / "one"))
    assert numbers(killed)["extremes"] == pytest.approx(undisturbed["extremes"], rel=2e-6)


def test_each_number_of_one_replica_is_a_finding_with_its_place_and_the_next_step(wrong):
    expected = [
        ("The metric 'outside_loop'", OUTSIDE),
        ("The variable 'outputs:0'", OUTSIDE),
        ("The metric 'overwritten' overwrites its variable 'overwritten/latest'", OVERWRITES),
        ("The metric 'rate' overwrites its variable 'rate/latest'", OVERWRITES),
        ("The metric 'moving' overwrites its variable 'moving/latest'", OVERWRITES),
        ("The metric 'first'", "counts the examples of the first of 2 replicas only"),
        ("(compute_loss)", AVERAGES),
        *(("replica_numbers.py:", AVERAGES) for _ in ("mean", "by_shape", "unreduced", "clipped", "loop")),
        ("replica_numbers.py:", ADDS),
    ]
    findings = wrong[2].status().findings
    assert len(findings) == len(expected)
    for start, what in expected:
        assert any(start in found and what in found and "Next: " in found for found in findings), start
    assert len({found.partition(" ")[0] for found in findings if AVERAGES in found}) == 6  # each names its own line
    assert wrong[1].status().findings == ()
    assert f"podlift: {findings[0]}" in [line.text for line in wrong[2].logs(task="chief-0")]
    assert f"Finding: {findings[0]}" in wrong[2].why()


def test_the_findings_are_about_numbers_that_differ_from_one_workers(wrong):
    one, two = numbers(wrong[1]), numbers(wrong[2])
    assert [case for case in one if one[case] == pytest.approx(two[case], rel=1e-3)] == []
    assert two["overwritten"]["overwritten"] == pytest.approx(2 * one["overwritten"]["overwritten"], rel=1e-6)
