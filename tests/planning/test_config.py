from __future__ import annotations

from dataclasses import fields

import pytest

import sdk
from sdk.errors import Problems
from sdk.planning.settings import table

BARE = {
    "entry", "args", "env", "inputs", "workers", "accelerator", "ps", "evaluator", "timeout", "max_steps", "max_cost_usd",
    "model", "warm_start", "allow_secret",
}  # fmt: skip


def test_every_field_of_a_job_and_a_backend_has_one_setting_that_names_its_group() -> None:
    groups = {
        "checkpoint": sdk.Checkpoints, "retry": sdk.Retry, "limit": sdk.Limits, "code": sdk.Code,
        "gate": sdk.Gate, "local": sdk.Local, "vertex": sdk.Vertex, "ray": sdk.Ray,
            "kubernetes": sdk.Kubernetes,
    }  # fmt: skip
    names = {f"{word}_{field.name}" for word, kind in groups.items() for field in fields(kind)}
    # Units are in the value, and the common ones have a bare name.
    renamed = {f"limit_{name}_s": f"limit_{name}" for name in ("hang", "grace", "exit_wait", "idle_accelerator")}
    renamed |= {f"checkpoint_every_{unit}": "checkpoint_every" for unit in ("s", "steps")}
    renamed["checkpoint_interval"] = "checkpoint_every"
    renamed |= {
        "ray_pending_timeout_s": "ray_pending_timeout",
        "code_allow_secret": "allow_secret",
    }
    renamed |= {"limit_timeout_s": "timeout", "limit_max_steps": "max_steps", "limit_max_cost_usd": "max_cost_usd"}
    assert set(table.settings()) == BARE | {renamed.get(name, name) for name in names}
    assert {name for name in table.settings() if name.partition("_")[0] not in groups} == BARE


def test_every_setting_has_a_sentence_in_the_docstring_of_its_class() -> None:
    assert [setting.name for setting in table.settings().values() if len(setting.doc) < 10] == []


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PODLIFT_WORKERS", "3", "workers", 3),
        ("PODLIFT_TIMEOUT", "none", "timeout", None),
        ("PODLIFT_LIMIT_HANG", "1h30m", "limit_hang", 5400.0),
        ("PODLIFT_CHECKPOINT_EVERY", "500steps", "checkpoint_every", "500steps"),
        ("PODLIFT_CHECKPOINT_EVERY", "300 , 20 steps", "checkpoint_every", "20steps,5m"),
        ("PODLIFT_CHECKPOINT_EVERY", "Auto", "checkpoint_every", "auto"),
        ("PODLIFT_CODE_KERAS", "legacy", "code_keras", "legacy"),
        ("PODLIFT_ARGS", '["--a", 1]', "args", ["--a", 1]),
        ("PODLIFT_ENV", '{"A": "b"}', "env", {"A": "b"}),
        ("PODLIFT_ROOT", "somewhere", "root", "somewhere"),
        ("PODLIFT_EVALUATOR", "yes", "evaluator", True),
        ("PODLIFT_WARM_START", "none", "warm_start", None),
        ("PODLIFT_GATE_GUARDS", '["accuracy >= 0.9"]', "gate_guards", ["accuracy >= 0.9"]),
        ("PODLIFT_VERTEX_REGIONS", "us-central1,us-east1", "vertex_regions", "us-central1,us-east1"),
        ("PODLIFT_VERTEX_REGIONS", '["us-central1"]', "vertex_regions", ["us-central1"]),
    ],
)
def test_a_variable_sets_its_field(variable: str, text: str, name: str, value: object) -> None:
    problems = Problems()
    assert table.from_environment({variable: text, "HOME": "/x"}, problems) == {name: value}
    assert problems.messages == []


def test_wrong_variables_are_named_together_and_the_right_ones_are_read() -> None:
    problems = Problems()
    given = {
        "PODLIFT_WORKER": "2",
        "PODLIFT_WORKERS": "two",
        "PODLIFT_CODE_KERAS": "legacy",
        "PODLIFT_ARGS": "[" * 100000,
    }
    assert table.from_environment(given, problems) == {"code_keras": "legacy"}
    said = "\n".join(problems.messages)
    assert "Did you mean 'PODLIFT_WORKERS'?" in said
    assert "PODLIFT_WORKERS: must be a number. Received: 'two'." in said
    assert "PODLIFT_ARGS: must be JSON, such as" in said


def test_the_values_for_the_tasks_are_not_quoted() -> None:
    problems = Problems()
    assert table.from_environment({"PODLIFT_ENV": '{"Q":"hunter2"'}, problems) == {}
    assert problems.messages == ['PODLIFT_ENV: must be JSON, such as {"name": 3}.']


def test_an_argument_beats_the_environment_which_beats_the_default(write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("hello.py", "print(1)")
    monkeypatch.setenv("PODLIFT_WORKERS", "3")
    assert len(sdk.plan("hello.py").tasks) == 3
    assert len(sdk.plan("hello.py", workers=2).tasks) == 2
    assert len(sdk.plan(sdk.Job("hello.py")).tasks) == 3
    assert len(sdk.plan(sdk.Job("hello.py", resources=sdk.Resources(workers=1))).tasks) == 1
    monkeypatch.delenv("PODLIFT_WORKERS")
    assert len(sdk.plan("hello.py").tasks) == 1
