"""Settings: fields of jobs and backends, variables, and keywords of `plan` and `submit`, for Python and a type checker."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import REPO, input_error

import sdk
from sdk.errors import Problems
from sdk.planning.settings import keywords, table

BARE = {
    "entry", "args", "env", "inputs", "workers", "accelerator", "ps", "evaluator", "timeout", "max_steps", "max_cost_usd",
    "model", "warm_start", "allow_secret",
}  # fmt: skip


def test_every_field_has_one_setting_that_names_its_group_and_a_sentence() -> None:
    groups = {"checkpoint": sdk.Checkpoints, "retry": sdk.Retry, "limit": sdk.Limits}
    groups |= {"code": sdk.Code, "gate": sdk.Gate}
    groups |= {"local": sdk.Local, "vertex": sdk.Vertex, "ray": sdk.Ray, "kubernetes": sdk.Kubernetes}
    names = {f"{word}_{field.name}" for word, kind in groups.items() for field in fields(kind)}
    # Units are in the value, and the common ones have a bare name.
    renamed = {f"limit_{name}_s": f"limit_{name}" for name in ("hang", "grace", "exit_wait", "idle_accelerator")}
    renamed |= {f"checkpoint_every_{unit}": "checkpoint_every" for unit in ("s", "steps")}
    renamed["checkpoint_interval"] = "checkpoint_every"
    renamed |= {"ray_pending_timeout_s": "ray_pending_timeout", "code_allow_secret": "allow_secret"}
    renamed |= {"limit_timeout_s": "timeout", "limit_max_steps": "max_steps", "limit_max_cost_usd": "max_cost_usd"}
    assert set(table.settings()) == BARE | {renamed.get(name, name) for name in names}
    assert {name for name in table.settings() if name.partition("_")[0] not in groups} == BARE
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
    given = {"WORKER": "2", "WORKERS": "two", "CODE_KERAS": "legacy", "ARGS": "[" * 100000}
    given = {f"PODLIFT_{name}": text for name, text in given.items()}
    assert table.from_environment(given, problems) == {"code_keras": "legacy"}
    said = "\n".join(problems.messages)
    assert "Did you mean 'PODLIFT_WORKERS'?" in said
    assert "PODLIFT_WORKERS: must be a number. Received: 'two'." in said
    assert "PODLIFT_ARGS: must be JSON, such as" in said


def test_the_keywords_are_the_settings_of_the_table_and_no_others() -> None:
    common, more = (typing.get_type_hints(kind) for kind in (keywords.CommonKeywords, keywords.MoreKeywords))
    assert common.keys() | more.keys() == {*table.settings(), *table.TARGET} - {"entry"}
    assert common.keys() == {*table.COMMON} and not common.keys() & more.keys()
    job = {name for name, setting in table.settings().items() if setting.group not in ("vertex", "ray", "kubernetes")}
    assert typing.get_type_hints(keywords.JobKeywords).keys() == job - {"entry"}


@pytest.mark.parametrize("call", [sdk.plan, sdk.submit, sdk.schedule])
def test_common_settings_are_parameters_with_the_types_and_sentences_of_the_table(call: Callable[..., Any]) -> None:
    page = (REPO / "docs" / "reference" / "settings.md").read_text().replace("\\|", "|").lower()
    # The line of each argument, and those below it that are indented deeper.
    said = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", inspect.getdoc(call) or "", re.MULTILINE))
    for name in [name for name in table.COMMON if (call, name) != (sdk.schedule, "name")]:
        parameter = inspect.signature(call).parameters[name]
        expected = keywords.CommonKeywords.__annotations__[name].__forward_arg__
        assert str(parameter.annotation).replace("Unset | ", "") == expected
        takes_none = name in table.settings() and name != "args" and table.takes_none(table.settings()[name])
        assert repr(parameter.default) == ("UNSET" if takes_none else "None")
        sentence = " ".join(said[name].split())
        row = rf"^\| `{name}` .* \| {re.escape(sentence.lower())}"
        assert sentence.endswith(".") and re.search(row, page, re.MULTILINE)


def test_an_unset_common_setting_leaves_the_choice_to_project_file_and_variables(write, monkeypatch) -> None:
    write("hello.py", "print(1)")
    write("podlift.toml", "model = 'digits'\nmax_steps = 5\ntimeout = '1h'\nworkers = 2\n")
    monkeypatch.setenv("PODLIFT_TIMEOUT", "2h")
    weekly = partial(sdk.schedule, "hello.py", name="weekly", cron="0 3 * * 1")
    for plan in (sdk.plan("hello.py"), weekly().plan):
        assert (plan.job.limits.max_steps, plan.job.limits.timeout_s, plan.job.resources.workers) == (5, 7200.0, 2)
    assert sdk.plan("hello.py").job.model == "digits"
    changed = weekly(max_steps=None, workers=1, code_writes="all").plan.job
    assert (changed.limits.max_steps, changed.resources.workers, changed.code.writes) == (None, 1, "all")
    assert sdk.plan("hello.py", model=None, timeout=None).job.model is None
    spec = weekly(when="older_than(20h)", notify="command:true").record.spec
    assert (spec.when, spec.notify) == (("older_than(20h)",), ("command:true",)), "one needs no list"


def test_every_setting_reaches_the_plan_as_a_keyword(write) -> None:
    write("hello.py", "print(1)")
    limits = {"max_steps": 20, "timeout": "1m", "limit_hang": None, "limit_grace": 7}
    more = {"checkpoint_every": "20steps", "checkpoint_auto": False, "retry_infrastructure": 7, "workers": 2}
    code = {"code_writes": "all", "code_exclude": ["*.csv"], "env": {"A": "b"}}
    job = sdk.plan("hello.py", **limits, **more, **code).job  # type: ignore[arg-type]
    assert (job.limits.timeout_s, job.limits.hang_s, job.limits.grace_s) == (60.0, None, 7.0)
    assert (job.checkpoints.every_steps, job.checkpoints.every_s, job.checkpoints.auto) == (20, None, False)
    assert (job.code.writes, job.code.exclude, job.retry.infrastructure) == ("all", ("*.csv",), 7)
    assert (job.limits.max_steps, job.env, job.resources.workers) == (20, {"A": "b"}, 2)
    cloud = {"backend": "vertex", "vertex_bucket": "mine", "vertex_image": "image", "vertex_project": "project-a"}
    for what in ("hello.py", sdk.Job("hello.py")):  # a Job has no field for it
        target = sdk.plan(what, **cloud, vertex_regions="us-east1").target  # type: ignore[arg-type]
        assert (target.project, target.regions) == ("project-a", ("us-east1",))


def test_none_is_a_value_where_the_setting_has_one_and_else_as_if_not_given(write, monkeypatch) -> None:
    write("hello.py", "print(1)")
    for name, value in (("TIMEOUT", "60"), ("WORKERS", "3"), ("PS", "1"), ("ARGS", '["a"]')):
        monkeypatch.setenv(f"PODLIFT_{name}", value)
    plan = sdk.plan("hello.py", timeout=None, workers=None, ps=None, args=None, name=None)
    assert plan.job.limits.timeout_s is None
    assert (plan.job.resources.workers, plan.job.resources.ps, plan.job.args) == (3, 1, ["a"])


def test_unknown_and_contradicting_keywords_are_all_named_with_the_nearest_setting(write) -> None:
    write("hello.py", "print(1)")
    nearest = (
        "Unknown setting 'max_step'. Did you mean 'max_steps'?",
        "Unknown setting 'worker'. Did you mean 'workers'?",
    )
    twice = "vertex_project: not together with backend=Vertex(...), which sets it too."
    with input_error(*nearest, twice, "entry: not as a keyword"):
        sdk.submit("hello.py", max_step=20, worker=2, vertex_project="a", entry="x", backend=sdk.Vertex(project="b"))  # type: ignore[call-arg]
    job, plan = sdk.Job("hello.py", limits=sdk.Limits(timeout_s=60)), sdk.plan("hello.py")
    with pytest.raises(sdk.InputError, match="max_steps, timeout: not together with a Job"):
        sdk.plan(job, max_steps=20, timeout=None, workers=None)
    with pytest.raises(sdk.InputError, match="max_steps, timeout: cannot be combined with a Plan"):
        sdk.submit(plan, max_steps=20, timeout=None, workers=None)
    with pytest.raises(sdk.InputError, match=r"^This cannot be run: Plan\(.{,320}\. Expected a string, a path,"):
        sdk.plan(plan)  # type: ignore[arg-type]


@pytest.mark.full
@pytest.mark.process
def test_a_type_checker_finds_wrong_names_and_types_in_a_users_program(tmp_path: Path) -> None:
    lines = {
        "import sdk": "",
        "from pathlib import Path": "",
        "run = sdk.submit('train.py', max_steps=20, timeout='10m', code_include=['a'], inputs={'x': Path('y')})": "",
        "sdk.plan('train.py', env={'A': 'b', 'B': sdk.FromCaller()}, root=Path('.'), backend=sdk.Local())": "",
        "texts: dict[str, str] = {'A': 'b'}": "",
        "job = sdk.Job('train.py', env=texts, inputs={'x': Path('y')}, resources={'workers': 2}, retry=sdk.Retry())": "",
        "sdk.plan(job, backend=sdk.Vertex(regions='us-east1', labels=texts, raw={'a': {}}))": "",
        "sdk.Job('train.py', code=sdk.Code(project=Path('.'), include=['a'], requirements=[Path('b')]))": "",
        "workers: int = job.resources.workers": "",
        "status: sdk.Status = run.wait(timeout_s=3)": "",
        "sdk.schedule('train.py', name='weekly', cron='0 3 * * 1', workers=2, timeout=None, code_writes='all')": "",
        "sdk.submit('train.py', max_step=20)": 'Unexpected keyword argument "max_step"',
        "sdk.submit('train.py', code_write='all')": 'Unexpected keyword argument "code_write"',
        "sdk.schedule('train.py', name='weekly', cron='0 3 * * 1', worker=2)": 'Unexpected keyword argument "worker"',
        "sdk.plan('train.py', max_steps='20')": '"max_steps" to "plan" has incompatible type "str"',
        "sdk.Job('train.py', resources=2)": 'Argument "resources" to "Job" has incompatible type "int"',
        "sdk.Vertex(regions=1)": 'Argument "regions" to "Vertex" has incompatible type "int"',
        "sdk.plan('train.py', code_keras='2')": '"code_keras" to "plan" has incompatible type',
    }
    (tmp_path / "user.py").write_text("\n".join([*lines, ""]))
    # What mypy knows of podlift from the last time takes it a fifth of the time.
    cache = str(REPO / ".mypy_cache" / "users")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "user.py"]
    env = {**os.environ, "MYPYPATH": str(REPO)}
    shown = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True).stdout
    wrong = {number: said for number, said in enumerate(lines.values(), 1) if said}
    errors = [line for line in shown.splitlines() if line.startswith("user.py:") and ": error: " in line]
    assert [line.split(":")[1] for line in errors] == [str(number) for number in wrong], shown
    assert all(said in line for said, line in zip(wrong.values(), errors, strict=True)), shown
