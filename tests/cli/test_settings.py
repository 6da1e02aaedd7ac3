"""Settings: default < the project's file < environment < argument, each under one name; each value knows its origin."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support import files_with

import sdk
from sdk.job.findings import Finding
from sdk.job.setting_names import table_of, tables
from sdk.planning.settings import table

RAW = "raw = { job = { runtime_env = { ... } } } below [ray]."
AT_TOP = "In a podlift.toml the settings stand at the top, without [tool.podlift]."


def workers(*args, **options) -> int:
    return len(sdk.plan(*args, **options).tasks)


@pytest.mark.parametrize("file", ["podlift.toml", "pyproject.toml"])
def test_arguments_beat_the_environment_which_beats_a_file_which_beats_the_default(project, monkeypatch, file) -> None:
    assert workers("train.py") == 1
    project(file, ("[tool.podlift]\n" if file == "pyproject.toml" else "") + "workers = 2\n")
    assert workers("train.py") == 2
    monkeypatch.setenv("PODLIFT_WORKERS", "3")
    assert workers("train.py") == workers(sdk.Job("train.py")) == 3
    assert workers("train.py", workers=4) == 4
    assert workers(sdk.Job("train.py", resources=sdk.Resources(workers=4))) == 4


def test_the_plan_shows_each_value_and_its_origin(project, here, monkeypatch) -> None:
    project("podlift.toml", 'entry = "train.py"\nworkers = 2\nmax-steps = 20\n[env]\nTOKEN = "hidden"\n')
    monkeypatch.setenv("PODLIFT_CODE_KERAS", "legacy")
    shown = here("config", "--json", "--ps", "1", "--backend", "vertex")
    settings = {row["name"]: row for row in json.loads(shown.stdout)["settings"]}
    place = str(Path.cwd() / "podlift.toml")
    assert json.loads(shown.stdout)["file"] == place
    assert settings["workers"] == {"name": "workers", "value": 2, "origin": place}
    assert settings["ps"] == {"name": "ps", "value": 1, "origin": "argument"}
    assert settings["backend"]["value"] == "vertex"
    assert settings["max_steps"]["value"] == 20
    assert settings["code_keras"] == {"name": "code_keras", "value": "legacy", "origin": "PODLIFT_CODE_KERAS"}
    assert settings["accelerator"] == {"name": "accelerator", "value": "cpu", "origin": "default"}
    assert settings["root"]["origin"] == "PODLIFT_ROOT"
    assert settings["env"]["value"] == ["TOKEN"]
    assert "hidden" not in shown.stdout + here("config").stdout
    assert set(settings) == {*table.settings(), *table.TARGET}
    changed = json.loads(here("config", "--json", "--changed").stdout)["settings"]
    assert {"entry", "workers", "code_keras", "max_steps"} < {row["name"] for row in changed}
    assert "default" not in {row["origin"] for row in changed}


@pytest.mark.process
def test_the_file_may_name_the_entry_and_everything_else(write, here, monkeypatch) -> None:
    write("jobs/train.py", "print('ran')")
    text = 'entry = "jobs/train.py"\nname = "nightly"\nroot = "elsewhere"\nworkers = 2\n'
    write("pyproject.toml", f"[tool.podlift]\n{text}")
    monkeypatch.delenv("PODLIFT_ROOT")
    monkeypatch.chdir("jobs")
    shown = here("submit", "--json")
    assert shown.code == 0, shown.stderr
    run = json.loads(shown.stdout)
    assert run["id"].startswith("nightly-")
    assert Path(run["url"]).parent.parent == Path.cwd().parent / "elsewhere"
    assert run["id"] in here("list").stdout, "whoever stands in the project finds its runs"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wrokers = 2", "Unknown setting wrokers. Did you mean 'workers'?"),
        ("workers = 0", "greater than or equal to 1"),
        ("name = 2024-01-01", "is a date"),
        ("[code]\ninclude = 'data'", "must be a list of texts"),
        ("[code]\nisolated = 'yes'", "code_isolated: "),
        ("backend = 3", "backend must be a text"),
        ("root = 7", "root must be a text"),
        ("env = 3", "env: Must be"),
        ("workers = ", "is not TOML"),
        ("[env]\nA = 3", "'A' must be a text"),
        ("[inputs]\ntrain = 3", "inputs.train: Must be a valid string"),
        ("[limits]\nhang = 3", "Unknown setting limits. Did you mean 'limit'?"),
        ("[ray.runtime-env]\npip = ['six']", f"Unknown setting ray.runtime_env. Next: {RAW}"),
        ("ray_raw = 3", "ray_raw is written differently in the file: raw below [ray]."),
        ("[ray]\nbackend = 'ray'", "ray.backend is written differently in the file: backend at its top."),
        ("[tool.podlift]\nworkers = 3", f"Unknown setting tool. {AT_TOP}"),
        ("name = 'A B'", "cannot be a label"),
        ("[code]\ninclude = ['nowhere']", "An include does not match any file"),
        ("backend = 'vertex'\n[vertex]\nregions = 'mars'", "Not a region: 'mars'"),
        ("root = 'http://x'", "A root is a folder or gs://BUCKET/PREFIX"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_the_file(project, text: str, said: str, monkeypatch) -> None:
    place = str(project("podlift.toml", text))
    monkeypatch.delenv("PODLIFT_ROOT")
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan("train.py")
    assert (said in str(caught.value), place in str(caught.value)) == (True, True)


def test_a_mistake_in_a_variable_names_the_variable_and_one_in_the_call_does_not(project, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_WORKERS", "0")
    monkeypatch.setenv("PODLIFT_ACCELERATOR", "v99")
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan("train.py", checkpoint_every="0steps")
    ends = [problem.rpartition(". ")[2] for problem in caught.value.problems]
    places = ["workers comes from PODLIFT_WORKERS.", "accelerator comes from PODLIFT_ACCELERATOR."]
    assert ends == [*places, "Received: 0."]


def test_settings_in_a_table_that_is_not_read_or_in_two_places_are_refused(project, here) -> None:
    place = str(project("pyproject.toml", "[podlift]\nworkers = 3"))
    said = "[podlift] is not read. Did you mean [tool.podlift]?"
    shown = here("plan", "train.py")
    assert (shown.code, said in shown.stderr, place in shown.stderr) == (2, True, True)
    shown = here("list")
    assert (shown.code, f"podlift: ignored: {place!r}: {said}" in shown.stderr) == (0, True)
    project("podlift.toml", "workers = 2")
    project("pyproject.toml", "[tool.podlift]\nworkers = 3")
    with pytest.raises(sdk.InputError, match="Settings stand in two places"):
        sdk.plan("train.py")


@pytest.mark.parametrize("verb", ["list", "status x-aaaaaa", "submit plan.json"])
def test_a_variable_that_is_no_setting_is_named_by_verbs_that_need_no_settings(here, monkeypatch, verb: str) -> None:
    monkeypatch.setenv("PODLIFT_RUT", "1")
    monkeypatch.setenv("PODLIFT_BACKEND", "vertx")
    shown = here(*verb.split())
    assert "podlift: ignored: Unknown setting PODLIFT_RUT. Did you mean 'PODLIFT_ROOT'?" in shown.stderr
    assert "'vertx'. Did you mean 'vertex'? backend comes from PODLIFT_BACKEND." in shown.stderr


def test_a_root_that_is_none_is_named_with_the_variable(here, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_ROOT", "http://x")
    shown = here("list")
    assert (shown.code, "Received: root='http://x'. root comes from PODLIFT_ROOT." in shown.stderr) == (2, True)


def test_variables_and_inputs_of_several_sources_are_merged_name_by_name(write, here, tmp_path, monkeypatch) -> None:
    write("data/a.csv")
    write("b.csv")
    write("podlift.toml", '[env]\nA = "file"\nB = "file"\n[inputs]\na = "data/a.csv"\n')
    write("jobs/train.py", "import os, sdk; print(os.environ['A'], os.environ['B'], sdk.context().inputs)")
    monkeypatch.chdir("jobs")
    plan = json.loads(here("plan", "train.py", "--env", "B=argument", "--input", "b=../b.csv", "--json").stdout)
    assert plan["job"]["env"] == {"A": "file", "B": "argument"}
    assert plan["inputs"] == {"a": str(tmp_path / "project/data/a.csv"), "b": str(tmp_path / "project/b.csv")}


@pytest.mark.process
def test_a_task_sees_the_machine_and_nothing_else_of_the_callers_environment(write, monkeypatch) -> None:
    write("train.py", "import os, json; print(json.dumps(dict(os.environ)))")
    given = {"MY_SECRET": "s3cret", "TF_CPP_MIN_LOG_LEVEL": "3", "LC_ALL": "C", "PYTHONPATH": "/no", "TF_CONFIG": "{}"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    plan = sdk.plan("train.py")
    assert {"MY_SECRET", "TF_CPP_MIN_LOG_LEVEL", "PYTHONPATH"} <= set(plan.facts.dropped)
    assert "LC_ALL" not in plan.facts.dropped
    (line,) = [line for line in str(plan).splitlines() if line.startswith("not passed")]
    assert {"MY_SECRET", "PYTHONPATH"} <= set(re.findall(r"\w+", line))
    run = sdk.submit(plan)
    run.result(60)
    (seen,) = [json.loads(line.text) for line in run.logs()]
    assert set(given) & set(seen) == {"LC_ALL"}
    assert seen["HOME"] == os.environ["HOME"]


@pytest.mark.process
def test_a_variable_can_be_copied_without_being_stored(write, here, monkeypatch, root: Path) -> None:
    write("train.py", "import os; print(len(os.environ['MY_SECRET']))")
    monkeypatch.setenv("MY_SECRET", "s3cret-value")
    shown = here("submit", "train.py", "--env", "MY_SECRET", "--json")
    assert shown.code == 0, shown.stderr
    run = sdk.attach(json.loads(shown.stdout)["id"])
    assert [line.text for line in run.logs()] == ["12"]
    assert "MY_SECRET (from this shell)" in str(run.plan)
    assert run.plan.job.env == {"MY_SECRET": sdk.FromCaller()}
    assert files_with("s3cret-value", root) == []
    monkeypatch.delenv("MY_SECRET")
    with pytest.raises(sdk.InputError, match="MY_SECRET is to be copied from here, but is not set here"):
        sdk.plan(sdk.Job("train.py", env={"MY_SECRET": sdk.FromCaller()}))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1d", 86400), ("1.5s", 1.5)]
)
def test_a_timeout_is_a_duration(project, here, text: str, seconds: float) -> None:
    plan = json.loads(here("plan", "train.py", "--timeout", text, "--json").stdout)
    assert plan["job"]["limits"]["timeout_s"] == seconds


def test_a_group_is_a_table_of_the_file_and_only_that(project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODLIFT_RETRY_PREEMPTIONS")
    text = (
        'workers = 2\ntimeout = "1h"\n[tool.podlift.checkpoint]\nevery = "20steps,1m"\nkeep-last = 7\n'
        '[tool.podlift.limit]\nhang = "none"\ngrace = 3\n[tool.podlift.code]\nexclude = ["*.csv"]\n'
        '[tool.podlift.retry]\npreemptions = "none"\nuser_errors = 1\n[tool.podlift.local]\nstart = "spawn"\n'
        '[tool.podlift.vertex]\nproject = "mine"\n'
    )
    project("pyproject.toml", f"[tool.podlift]\n{text}")
    plan = sdk.plan("train.py")
    job = plan.job
    assert (job.limits.timeout_s, job.limits.hang_s, job.limits.grace_s) == (3600.0, None, 3.0)
    saved = job.checkpoints
    assert (saved.every_steps, saved.every_s, saved.keep_last) == (20, 60.0, 7)
    assert (job.retry.user_errors, job.retry.preemptions) == (1, None)
    assert (job.code.exclude, plan.target) == (("*.csv",), sdk.Local(start="spawn"))
    for wrong, said in (
        ("checkpoint_every = '5m'", "checkpoint_every is written differently in the file: every below [checkpoint]."),
        ("checkpoint = 3", "checkpoint is a table of settings. Received: 3."),
        ("[checkpoint]\nevrey = 3", "Unknown setting checkpoint.evrey. Did you mean 'checkpoint.every'?"),
        ("[checkpoint]\nevery = 'soon'", "checkpoint_every: must be a duration, a number of steps or both"),
    ):
        project("pyproject.toml")
        project("podlift.toml", wrong)
        with pytest.raises(sdk.InputError) as caught:
            sdk.plan("train.py")
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "steps", "seconds"),
    [
        ("5m", None, 300.0),
        ("500 steps, 5m", 500, 300.0),
        ("1h30m,1step", 1, 5400.0),
        (0.5, None, 0.5),
        (None, None, None),
    ],
)
def test_how_often_to_save_is_a_time_a_number_of_steps_or_both(project, given: object, steps, seconds) -> None:
    saved = sdk.plan("train.py", checkpoint_every=given).job.checkpoints  # type: ignore[arg-type]
    assert (saved.every_steps, saved.every_s) == (steps, seconds)


@pytest.mark.parametrize("given", ["", "soon", "5m,6m", "5steps,6steps", "5m,", "0steps", "-5m", True])
def test_a_value_that_is_neither_a_time_nor_steps_is_refused(project, given: object) -> None:
    with pytest.raises(sdk.InputError, match=r"^checkpoint_every: "):
        sdk.plan("train.py", checkpoint_every=given)  # type: ignore[arg-type]


def test_a_jobs_own_fields_beat_the_file_as_a_setting_does(project) -> None:
    project("podlift.toml", '[checkpoint]\nevery = "10m"\nkeep_last = 7\n[local]\ncluster = "workers"\n')
    job = sdk.Job("train.py", checkpoints=sdk.Checkpoints(every_steps=5), resources=sdk.Resources(workers=2))
    plan = sdk.plan(job, local_start="spawn", backend=sdk.Local(network="host"))
    saved = plan.job.checkpoints
    assert (saved.every_steps, saved.every_s, saved.keep_last) == (5, None, 7)
    assert plan.target == sdk.Local(start="spawn", cluster="workers")
    assert plan.tasks == ["worker-0", "worker-1"]


def test_a_setting_of_another_backend_has_no_effect_and_the_plan_says_so(project) -> None:
    here = sdk.plan("train.py", vertex_machine="n2-standard-4", vertex_disk_gb=200)
    assert Finding("warning", "vertex_machine, vertex_disk_gb: ignored by backend='local'.") in here.findings
    there = sdk.plan("train.py", workers=2, backend="vertex", local_cluster="workers", local_network="isolated")
    assert Finding("warning", "local_network: ignored by backend='vertex'.") in there.findings
    chief = "local_cluster='workers': ignored by vertex, which always creates a chief."
    assert Finding("warning", chief) in there.findings
    assert there.tasks == ["chief-0", "worker-0"]
    twice = r"local_start: not together with backend=Local\(\.\.\.\), which sets it too"
    with pytest.raises(sdk.InputError, match=twice):
        sdk.plan("train.py", local_start="fork", backend=sdk.Local(start="spawn"))


def test_every_group_has_its_word() -> None:
    assert {table_of(name)[0] for name in table.settings()} == {"", *tables()}


@pytest.mark.parametrize("words", [("wait", "x", "--timeout"), ("preflight", "x.py", "--time-limit")])
def test_every_time_span_is_written_in_the_same_way(here, words: tuple[str, ...]) -> None:
    shown = here(*words, "soon")
    assert (shown.code, f"{words[-1]}: must be a duration" in shown.stderr) == (2, True)
    assert "must be a duration" not in here(*words, "1h30m").stderr
