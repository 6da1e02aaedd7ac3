"""Every setting is a keyword of `plan` and `submit`, for Python and for a type checker."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import REPO

import sdk
from sdk.planning.settings import keywords, table

# One of each kind: a number, a time, a text, a path, a switch, a choice, texts, a mapping, a policy's, a backend's.
SAID: dict[str, object] = {
    "max_steps": 20,
    "timeout": "1m",
    "limit_hang": None,
    "limit_grace": 7,
    "checkpoint_every": "20steps",
    "checkpoint_auto": False,
    "code_writes": "all",
    "code_exclude": ["*.csv"],
    "env": {"A": "b"},
    "retry_infrastructure": 7,
    "workers": 2,
}


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
        assert (
            str(parameter.annotation).replace("Unset | ", "")
            == keywords.CommonKeywords.__annotations__[name].__forward_arg__
        )
        takes_none = name in table.settings() and name != "args" and table.takes_none(table.settings()[name])
        assert repr(parameter.default) == ("UNSET" if takes_none else "None")
        sentence = " ".join(said[name].split())
        assert sentence.endswith(".") and re.search(
            rf"^\| `{name}` .* \| {re.escape(sentence.lower())}", page, re.MULTILINE
        )


def test_an_unset_common_setting_leaves_the_choice_to_project_file_and_variables(write, monkeypatch) -> None:
    write("hello.py", "print(1)")
    write("podlift.toml", "model = 'digits'\nmax_steps = 5\ntimeout = '1h'\nworkers = 2\n")
    monkeypatch.setenv("PODLIFT_TIMEOUT", "2h")
    for plan in (sdk.plan("hello.py"), sdk.schedule("hello.py", name="weekly", cron="0 3 * * 1").plan):
        assert (plan.job.limits.max_steps, plan.job.limits.timeout_s, plan.job.resources.workers) == (5, 7200.0, 2)
    assert sdk.plan("hello.py").job.model == "digits"
    changed = sdk.schedule(
        "hello.py", name="weekly", cron="0 3 * * 1", max_steps=None, workers=1, code_writes="all"
    ).plan.job
    assert (changed.limits.max_steps, changed.resources.workers, changed.code.writes) == (None, 1, "all")
    assert sdk.plan("hello.py", model=None, timeout=None).job.model is None


def test_one_precondition_and_one_receiver_need_no_list(write) -> None:
    write("hello.py", "print(1)")
    made = sdk.schedule("hello.py", name="weekly", cron="0 3 * * 1", when="older_than(20h)", notify="command:true")
    assert (made.record.spec.when, made.record.spec.notify) == (("older_than(20h)",), ("command:true",))


def test_every_setting_reaches_the_plan_as_a_keyword(write) -> None:
    write("hello.py", "print(1)")
    job = sdk.plan("hello.py", **SAID).job  # type: ignore[arg-type]
    assert (job.limits.timeout_s, job.limits.hang_s, job.limits.grace_s) == (60.0, None, 7.0)
    assert (job.checkpoints.every_steps, job.checkpoints.every_s, job.checkpoints.auto) == (20, None, False)
    assert (job.code.writes, job.code.exclude, job.retry.infrastructure) == ("all", ("*.csv",), 7)
    assert (job.limits.max_steps, job.env) == (20, {"A": "b"})
    assert job.resources.workers == 2


def test_a_keyword_reaches_the_backends_value(write) -> None:
    write("hello.py", "print(1)")
    cloud = {"backend": "vertex", "vertex_bucket": "mine", "vertex_image": "image"}
    for what in ("hello.py", sdk.Job("hello.py")):  # a Job has no field for it
        text = sdk.plan(what, **cloud, vertex_project="project-a", vertex_regions="us-east1").to_json()  # type: ignore[arg-type]
        assert '"project-a"' in text
        assert '"us-east1"' in text


def test_none_is_a_value_where_the_setting_has_one_and_else_as_if_not_given(write, monkeypatch) -> None:
    write("hello.py", "print(1)")
    for name, value in (("TIMEOUT", "60"), ("WORKERS", "3"), ("PS", "1"), ("ARGS", '["a"]')):
        monkeypatch.setenv(f"PODLIFT_{name}", value)
    plan = sdk.plan("hello.py", timeout=None, workers=None, ps=None, args=None, name=None)
    assert plan.job.limits.timeout_s is None
    assert (plan.job.resources.workers, plan.job.resources.ps, plan.job.args) == (3, 1, ["a"])


def test_unknown_and_contradicting_keywords_are_all_named_with_the_nearest_setting(write) -> None:
    write("hello.py", "print(1)")
    with pytest.raises(sdk.InputError) as caught:
        sdk.submit("hello.py", max_step=20, worker=2, vertex_project="a", entry="x", backend=sdk.Vertex(project="b"))  # type: ignore[call-arg]
    said = str(caught.value)
    assert "Unknown setting 'max_step'. Did you mean 'max_steps'?" in said
    assert "Unknown setting 'worker'. Did you mean 'workers'?" in said
    assert "vertex_project: not together with backend=Vertex(...), which sets it too." in said
    assert "entry: not as a keyword" in said
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
