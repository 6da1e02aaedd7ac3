"""A job: its arguments, variables, cluster and gate, with accepted values and every mistake in one error."""

from __future__ import annotations

import json
import math
import re
from dataclasses import FrozenInstanceError, asdict
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import any_json, input_error

import sdk
from sdk.job import cluster
from sdk.job.gates import Gain, Guard

CIRCULAR: dict = {}
CIRCULAR["itself"] = CIRCULAR


@settings(max_examples=30)
@given(st.dictionaries(st.text(), any_json(st.text())))
def test_whatever_json_can_carry_is_accepted_as_keyword_arguments_and_comes_back(args: dict) -> None:
    data = json.loads(json.dumps(asdict(sdk.Job("m:f", args=args))))
    assert sdk.Job(**data).args == args


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--epochs 3", "a list is argv"),
        ([math.nan], "[0] is nan"),
        ({"a": [1, {2, 3}]}, "['a'][1] is a builtins.set"),
        ({"a": math.inf}, "['a'] is inf"),
        ({1: 2}, "keyed by 1, not a string"),
        ([True], "an argv holds strings and numbers"),
        ([10**5000], "[0] is an integer of more than 4300 digits"),
        (CIRCULAR, "['itself'] is a container that holds itself"),
        ({"a": reduce(lambda inner, _: [inner], range(5000), [])}, "nested more than 100 levels deep"),
        (["\ud800"], "which UTF-8 cannot hold"),
    ],
)
def test_an_argument_that_is_not_json_is_named_by_its_place(args: object, said: str) -> None:
    with input_error(said):
        sdk.Job("train.py", args=args)


@pytest.mark.parametrize(
    ("args", "argv"),
    [
        (None, []),
        (["--epochs", 3, 0.5], ["--epochs", "3", "0.5"]),
        ({"epochs": 3, "rate": 1e-3}, ["--epochs", "3", "--rate", "0.001"]),
        ({"fast": True, "slow": False, "none": None}, ["--fast"]),
        ({"sizes": [1, 2], "name": "a b"}, ["--sizes", "1", "2", "--name", "a b"]),
        ({"table": {"a": 1}}, ["--table", '{"a": 1}']),
        ({"a": -1e-5, "b": -3, "c": -0.5, "d": "--x"}, ["--a=-1e-05", "--b", "-3", "--c", "-0.5", "--d=--x"]),
    ],
)
def test_args_become_the_words_behind_a_script(args: object, argv: list[str]) -> None:
    assert sdk.Job("train.py", args=args).argv() == argv


@pytest.mark.parametrize(
    "name", ["1A", "A-B", "", "TF_CONFIG", "AIP_MODEL_DIR", "PODLIFT_TASK", "CLOUD_ML_JOB_ID", "KEY"]
)
def test_a_reserved_or_illegal_variable_is_refused_without_its_value(name: str) -> None:
    with pytest.raises(sdk.InputError) as caught:
        sdk.Job("train.py", env={name: "hunter2" + "\0" * (name == "KEY")})
    assert repr(name) in str(caught.value)
    assert name != "KEY" or "the value of 'KEY' holds a NUL character" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("field", ["timeout_s", "exit_wait_s"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_time_that_is_not_finite_is_no_limit(field: str, value: float) -> None:
    with pytest.raises(sdk.InputError, match=field):
        sdk.Limits(**{field: value})


@pytest.mark.parametrize("workers", [1001, 10**5000], ids=["one too many", "no number of workers"])
def test_more_workers_than_any_cluster_has_are_refused(workers: int) -> None:
    with pytest.raises(sdk.InputError, match="workers: Must be less than or equal to 1000"):
        sdk.Resources(workers=workers)


def test_all_mistakes_of_one_job_are_in_one_error_and_a_job_cannot_be_changed() -> None:
    resources, limits = {"workers": 0, "accelerator": "gpu"}, {"grace_s": -1}
    with input_error("Job has no field 'colour'", problems=5):
        sdk.Job("t.py", env={"1A": ""}, resources=resources, limits=limits, colour="red")
    with pytest.raises(FrozenInstanceError):
        sdk.Job("train.py").entry = "other.py"  # type: ignore[misc]


def test_variables_that_no_process_can_have_are_refused() -> None:
    fits = sdk.Job("train.py", env={"KEY": "x" * (128 * 1024 - 5)})
    assert len(fits.env) == 1
    with pytest.raises(sdk.InputError, match=r"'KEY' has 131072 bytes, and Linux takes 131071 at most.*file"):
        sdk.Job("train.py", env={"KEY": "x" * (128 * 1024 - 4)})
    with pytest.raises(sdk.InputError, match="bytes together"):
        sdk.Job("train.py", env={f"KEY{i}": "x" * 100_000 for i in range(20)})


def environment(workers: int, shape: str, task: int) -> dict[str, str]:
    members = cluster.tasks(workers, shape)
    return _environment(members, task)


def _environment(members: list[cluster.Task], task: int) -> dict[str, str]:
    hosts = {member.name: cluster.host_name(member, "run-aaaaaa") for member in members}
    addresses = {name: f"{host}:{4000 + number}" for number, (name, host) in enumerate(hosts.items())}
    return cluster.environment(members[task], members, addresses, {"run": "run-aaaaaa"})


def test_one_task_gets_a_cluster_spec_and_no_tf_config() -> None:
    variables = environment(1, "chief", 0)
    assert "TF_CONFIG" not in variables
    assert json.loads(variables["CLUSTER_SPEC"])["task"] == {"type": "workerpool0", "index": 0}


@pytest.mark.parametrize(
    ("shape", "names", "roles"),
    [
        ("chief", ["chief-0", "worker-0", "worker-1"], {"chief": 1, "worker": 2}),
        ("workers", ["worker-0", "worker-1", "worker-2"], {"worker": 3}),
    ],
)
def test_three_tasks_have_the_shape_that_was_asked_for(shape: str, names: list[str], roles: dict[str, int]) -> None:
    assert [task.name for task in cluster.tasks(3, shape)] == names
    config = json.loads(environment(3, shape, 2)["TF_CONFIG"])
    assert {role: len(hosts) for role, hosts in config["cluster"].items()} == roles
    assert f"{config['task']['type']}-{config['task']['index']}" == names[2]
    assert config["environment"] == "cloud"


def test_host_names_have_the_form_that_vertex_gives_and_each_port_is_there_once() -> None:
    spec = json.loads(environment(3, "chief", 1)["CLUSTER_SPEC"])
    hosts = [host for pool in spec["cluster"].values() for host in pool]
    assert all(re.fullmatch(r"cmle-training-workerpool[01]-[0-9a-f]{10}-\d:\d+", host) for host in hosts)
    assert len({host.rpartition(":")[2] for host in hosts}) == 3
    assert set(spec) == {"cluster", "environment", "task", "job"}
    assert spec["task"] == {"type": "workerpool1", "index": 0}


def test_pools_are_roles_and_an_evaluator_is_told_of_a_cluster_that_it_is_no_part_of() -> None:
    members = cluster.tasks(2, ps=2, evaluator=True)
    pools = [f"{task.name} {task.pool} {task.pool_index}" for task in members]
    assert pools == ["chief-0 0 0", "worker-0 1 0", "ps-0 2 0", "ps-1 2 1", "evaluator-0 3 0"]
    variables = _environment(members, -1)
    config, spec = json.loads(variables["TF_CONFIG"]), json.loads(variables["CLUSTER_SPEC"])
    assert config["task"]["type"] == "evaluator"
    assert {role: len(hosts) for role, hosts in config["cluster"].items()} == {"chief": 1, "worker": 1, "ps": 2}
    counts = {pool: len(hosts) for pool, hosts in spec["cluster"].items()}
    assert counts == {"workerpool0": 1, "workerpool1": 1, "workerpool2": 2, "workerpool3": 1}
    assert spec["task"] == {"type": "workerpool3", "index": 0}


@pytest.mark.parametrize(
    ("names", "together", "ending", "alone"),
    [
        ("chief-0", "chief-0", "chief-0", ""),
        ("worker-0 worker-1", "worker-0 worker-1", "worker-0 worker-1", ""),
        ("chief-0 worker-0", "chief-0 worker-0", "chief-0 worker-0", ""),
        ("chief-0 worker-0 evaluator-0", "chief-0 worker-0", "chief-0 worker-0 evaluator-0", "evaluator-0"),
        ("chief-0 worker-0 ps-0", "chief-0", "chief-0", "worker-0"),
        ("worker-0 worker-1 ps-0", "worker-0", "worker-0", "worker-1"),
        ("chief-0 worker-0 ps-0 evaluator-0", "chief-0", "chief-0 evaluator-0", "worker-0 evaluator-0"),
    ],
)
def test_tasks_step_together_end_by_themselves_and_restart_alone(names, together, ending, alone) -> None:
    tasks = names.split()
    assert list(cluster.in_step(tasks)) == together.split()
    assert list(cluster.end_by_themselves(tasks)) == ending.split()
    assert [task for task in tasks if cluster.restarts_alone(task, tasks)] == alone.split()


FINITE, COMPARISONS = st.floats(-1e12, 1e12), st.sampled_from([">=", ">", "<=", "<"])
ASKED = {"evaluate": "quality:measure", "data": "test", "metric": "accuracy"}


@pytest.mark.parametrize(
    ("text", "champion", "bound"),
    [
        ("accuracy >= 0.9", None, 0.9),
        ("loss < -1.5e-3", None, -1.5e-3),
        ("accuracy[eights] >= champion - 0.01", 0.95, 0.94),
        ("loss <= champion * 1.05", 2.0, 2.1),
        ("loss <= champion", 0.25, 0.25),
        ("loss <= champion", None, None),
        ("loss <= champion", math.nan, None),
    ],
)
def test_a_guard_is_a_bound_for_one_metric(text: str, champion: float | None, bound: float | None) -> None:
    assert Guard.parse(text).bound(champion) == (None if bound is None else pytest.approx(bound))


@given(COMPARISONS, st.sampled_from("+-*"), st.floats(0, 1e6), st.sampled_from(["", " "]), FINITE)
def test_a_guard_reads_its_written_form(comparison: str, sign: str, number: float, space: str, champion: float) -> None:
    guard = Guard.parse(f"accuracy{space}{comparison}{space}champion{space}{sign}{space}{number!r}")
    expected = {"+": champion + number, "-": champion - number, "*": champion * number}[sign]
    bound = guard.bound(champion)
    assert (guard.metric, guard.comparison) == ("accuracy", comparison)
    assert bound is not None and math.isclose(bound, expected, rel_tol=1e-9, abs_tol=1e-3)
    assert not any(guard.holds(value, bound) for value in (math.nan, math.inf, -math.inf))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a guard. Received: ''"),
        ("accuracy", "Expected: 'accuracy >= 0.9'"),
        ("accuracy => 0.9", "unknown comparison '=>'"),
        ("accuracy >= good", "not a bound: 'good'"),
        ("accuracy >= champion / 2", "not a bound: 'champion / 2'"),
        ("0.8 <= accuracy <= 0.9", "not a bound: 'accuracy <= 0.9'"),
        ("accuracy >= nan", "not a bound: 'nan'"),
        ("accuracy >= 1e999", "not a bound: '1e999'"),
    ],
)
def test_a_text_that_is_no_guard_is_refused_with_an_example(text: str, said: str) -> None:
    with input_error("guards: ", said):
        sdk.Gate(**ASKED, guards=[text])


@given(st.text(max_size=30))
def test_any_text_is_a_guard_or_an_error_of_input(text: str) -> None:
    try:
        guard = Guard.parse(text)
    except sdk.InputError:
        return
    assert Guard.parse(guard.text) == guard
    assert math.isfinite(guard.bound(1.0) or 0.0)


@pytest.mark.parametrize(
    ("text", "champion", "needed"),
    [("0.01", 0.5, 0.01), ("1%", 0.5, 0.005), ("1 %", -200.0, 2.0), ("10%", 0.0, 0.0), ("1e-3", 9.0, 0.001)],
)
def test_a_gain_is_a_difference_or_a_part_of_the_champions_value(text: str, champion: float, needed: float) -> None:
    assert Gain.parse(text).over(champion) == pytest.approx(needed)


@pytest.mark.parametrize("gain", ["-0.01", "1%%", "a bit", "", "nan", "1e999", math.nan, -1, True, [1]])
@pytest.mark.parametrize("field", ["min_gain", "ask_below"])
def test_a_value_that_is_no_gain_is_refused(field: str, gain: Any) -> None:
    with pytest.raises(sdk.InputError, match=f"^{field}: "):
        sdk.Gate(**ASKED, **{field: gain})


def test_a_metric_has_to_show_which_value_is_better() -> None:
    for metric, mode in (
        ("accuracy", "max"), ("val_loss", "min"), ("max:score", "max"), ("min:accuracy", "min"),
        ("previous_loss", "min"), ("auc_1", "max"), ("mean_io_u", "max"), ("mean_squared_error", "min"),
    ):  # fmt: skip
        gate = sdk.Gate(**{**ASKED, "metric": metric})
        assert (gate.measured, gate.mode) == (metric.rpartition(":")[2], mode)
    for metric, said in (
        ("score", "Next: 'max:score' or 'min:score'"), ("best:score", "or min:NAME, or max:NAME"),
        ("accepted", "Next: 'max:accepted'"), ("accuracy_loss", "Next: 'max:accuracy_loss'"), ("min:max:x", "or min:NAME"),
        ("max: score", "without blanks"), ("", "without blanks"),
    ):  # fmt: skip
        with pytest.raises(sdk.InputError, match=f"^metric: .*{said}"):
            sdk.Gate(**{**ASKED, "metric": metric})


def test_all_mistakes_of_a_gate_are_in_one_error() -> None:
    guards = ["accuracy => 1", "loss", "loss <= champion"]
    parts = (
        "evaluate: must be module:function of the packaged code, nearest 'quality:measure'. Received:",
        "unknown comparison '=>'",
        "not a guard. Received: 'loss'",
        "Gate has no field 'guard'. Did you mean 'guards'?",
        "metric: missing.",
        "ask_below: must be more than min_gain, which is '2%'. Received: '1%'.",
    )
    with input_error(*parts, problems=6):
        sdk.Gate(evaluate="quality.py:measure", min_gain="2%", ask_below="1%", guards=guards, guard="loss < 1")


def test_gate_fields_without_a_function_are_refused_unless_the_gate_is_switched_off() -> None:
    with pytest.raises(sdk.InputError) as caught:
        sdk.Job("train.py", gate={"metric": "accuracy", "min_gain": 1})
    assert caught.value.problems == (
        "metric: no effect without evaluate, the function of the gate.",
        "min_gain: no effect without evaluate, the function of the gate.",
    )
    assert sdk.Gate(evaluate=None, metric="accuracy").evaluate is None


def test_a_number_is_a_gain_too_and_a_gate_comes_back_from_its_json() -> None:
    gate = sdk.Gate(**ASKED, min_gain=0.01, guards=("a >= 1",), ask_below=1)
    assert (gate.min_gain, gate.ask_below) == ("0.01", "1")
    assert sdk.Gate(**json.loads(json.dumps(asdict(gate)))) == gate


def test_mistakes_in_settings_of_the_gate_are_named_by_setting_with_their_source(write, monkeypatch) -> None:
    write("train.py", "print(1)")
    monkeypatch.setenv("PODLIFT_GATE_GUARDS", '["loss"]')
    monkeypatch.setenv("PODLIFT_MODEL", "My Model")
    guards = ("gate_guards: not a guard. Received: 'loss'", "gate_guards comes from PODLIFT_GATE_GUARDS.")
    more = ("gate_metric: missing.", "Nearest: 'my-model'", "warm_start: Must be 'champion' or 'last'")
    with input_error(*guards, *more):
        sdk.plan("train.py", gate_evaluate="quality:measure", warm_start="best")  # type: ignore[arg-type]


def test_a_run_is_registered_under_its_own_name_unless_a_model_is_named(write) -> None:
    write("train.py", "print(1)")
    assert sdk.plan("train.py", name="weekly").model == ""
    assert sdk.plan("train.py", name="weekly", warm_start="champion").model == "weekly"
    assert sdk.plan("train.py", name="weekly", model="digits").model == "digits"
