"""One name for each setting, as a keyword, a flag, a variable and in the file; an earlier name leads to the new one."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

import sdk
from sdk.planning.settings import table
from sdk.spec.findings import Finding
from sdk.spec.plan import Plan
from sdk.spec.setting_names import RENAMED, RENAMED_FIELDS, TABLES, table_of

OLD = sorted(RENAMED)
GOLDEN = next((Path(__file__).parent.parent / "golden").glob("v0.1.0/runs/*"))


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def unit(name: str) -> str:
    return ", with the unit: 500steps" if name == "every_steps" else ""


def test_every_earlier_name_has_become_a_setting_of_today() -> None:
    assert set(RENAMED.values()) <= set(table.SETTINGS)
    assert not set(RENAMED) & set(table.SETTINGS)


@pytest.mark.parametrize("old", OLD)
def test_an_earlier_name_as_a_keyword_a_flag_or_a_variable_is_an_error_that_names_the_new_one(
    write, here, monkeypatch: pytest.MonkeyPatch, root: Path, old: str
) -> None:
    write("train.py", "print(1)")
    new = RENAMED[old]
    with pytest.raises(sdk.InputError) as caught:
        sdk.submit("train.py", **{old: None})  # type: ignore[arg-type]
    assert caught.value.problems == (f"{old} is now {new}{unit(old)}.",)
    words = [flag(old)] if table.SETTINGS[new].type is bool else [flag(old), "1"]
    shown = here("submit", "train.py", *words)
    assert (shown.code, shown.stderr) == (2, f"podlift: {flag(old)} is now {flag(new)}{unit(old)}.\n")
    monkeypatch.setenv(f"PODLIFT_{old.upper()}", "1")
    with pytest.raises(sdk.InputError) as caught:
        sdk.submit("train.py")
    assert caught.value.problems == (f"PODLIFT_{old.upper()} is now PODLIFT_{new.upper()}{unit(old)}.",)
    assert not root.exists()


@pytest.mark.parametrize("old", OLD)
def test_an_earlier_name_in_the_file_is_an_error_that_names_the_new_one_and_its_table(
    write, root: Path, old: str
) -> None:
    write("train.py", "print(1)")
    group, key = table_of(RENAMED[old])
    place = write("podlift.toml", f"{old.replace('_', '-')} = 1\n")
    with pytest.raises(sdk.InputError) as caught:
        sdk.submit("train.py")
    below = f"{key} below [tool.podlift.{group}]" if group else f"{key} directly below [tool.podlift]"
    assert caught.value.problems == (f"{place}: {old} is now {below}{unit(old)}.",)
    assert not root.exists()


@pytest.mark.parametrize(("owner", "field"), sorted(RENAMED_FIELDS), ids=".".join)
def test_a_field_that_a_class_had_is_an_error_that_names_the_new_one(owner: str, field: str) -> None:
    new = RENAMED_FIELDS[owner, field]
    with pytest.raises(sdk.InputError) as caught:
        getattr(sdk, owner)(**{field: 1})
    assert str(caught.value) == f"{owner}({field}=...) is now {new}."
    name, _, rest = new.partition("(")
    assert rest.removesuffix("=...)") in {each.name for each in fields(getattr(sdk, name))}
    part = {"Resources": "resources", "Code": "code", "Retry": "retry"}[owner]
    with pytest.raises(sdk.InputError, match="is now"):
        sdk.Job("train.py", **{part: {field: 1}})


def test_all_earlier_names_are_named_at_once_with_everything_else_that_is_wrong(write, here, monkeypatch, root) -> None:
    write("podlift.toml", "keep_last = 2\n[retry]\nuser = 1\n[limit]\ntimeout = 3\n")
    monkeypatch.setenv("PODLIFT_AUTO", "0")
    words = ("--no-isolated", "--every-steps", "7", "--project", "x", "--workers", "many")
    shown = here("submit", "trian.py", *words)
    assert shown.code == 2
    for said in (
        "--isolated is now --code-isolated.",
        "--every-steps is now --checkpoint-every, with the unit: 500steps.",
        "--project is now --code-project.",
        "--workers: must be a number",
        "PODLIFT_AUTO is now PODLIFT_CHECKPOINT_AUTO.",
        "keep_last is now keep_last below [tool.podlift.checkpoint].",
        "retry.user is now user_errors below [tool.podlift.retry].",
        "limit.timeout is written differently in the file: timeout directly below [tool.podlift].",
        "trian.py",
    ):
        assert said in shown.stderr
    assert not root.exists()


def test_a_group_is_a_table_of_the_file_and_only_that(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODLIFT_RETRY_PREEMPTIONS")
    write("train.py", "print(1)")
    text = (
        'workers = 2\ntimeout = "1h"\n[tool.podlift.checkpoint]\nevery = "20steps,1m"\nkeep-last = 7\n'
        '[tool.podlift.limit]\nhang = "none"\ngrace = 3\n[tool.podlift.code]\nexclude = ["*.csv"]\n'
        '[tool.podlift.retry]\npreemptions = "none"\nuser_errors = 1\n[tool.podlift.local]\nstart = "spawn"\n'
        '[tool.podlift.vertex]\nproject = "mine"\n'
    )
    write("pyproject.toml", f"[tool.podlift]\n{text}")
    plan = sdk.plan("train.py")
    job = plan.job
    assert (job.limits.timeout_s, job.limits.hang_s, job.limits.grace_s) == (3600.0, None, 3.0)
    saved = job.checkpoints
    assert (saved.every_steps, saved.every_s, saved.keep_last) == (20, 60.0, 7)
    assert (job.retry.user_errors, job.retry.preemptions) == (1, None)
    assert (job.code.exclude, plan.target) == (("*.csv",), sdk.Local(start="spawn"))
    for wrong, said in (
        (
            "checkpoint_every = '5m'",
            "checkpoint_every is written differently in the file: every below [tool.podlift.checkpoint].",
        ),
        ("checkpoint = 3", "checkpoint is a table of settings. Received: 3."),
        ("[checkpoint]\nevrey = 3", "Unknown setting checkpoint.evrey. Did you mean 'checkpoint.every'?"),
        ("[checkpoint]\nevery = 'soon'", "checkpoint_every: must be a duration, a number of steps or both"),
    ):
        write("pyproject.toml")
        write("podlift.toml", wrong)
        with pytest.raises(sdk.InputError) as caught:
            sdk.plan("train.py")
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "steps", "seconds"),
    [
        ("5m", None, 300.0),
        ("500steps", 500, None),
        ("500 steps, 5m", 500, 300.0),
        ("1h30m,1step", 1, 5400.0),
        (90, None, 90.0),
        (0.5, None, 0.5),
        ("none", None, None),
        (None, None, None),
    ],
)
def test_how_often_to_save_is_a_time_a_number_of_steps_or_both(write, given: object, steps, seconds) -> None:
    write("train.py", "print(1)")
    saved = sdk.plan("train.py", checkpoint_every=given).job.checkpoints  # type: ignore[arg-type]
    assert (saved.every_steps, saved.every_s) == (steps, seconds)


@pytest.mark.parametrize(
    "given", ["", "soon", "5m,6m", "5steps,6steps", "steps", "5m,", "0steps", "0s", "-5m", True, "none,5m"]
)
def test_what_is_neither_a_time_nor_steps_is_refused(write, given: object) -> None:
    write("train.py", "print(1)")
    with pytest.raises(sdk.InputError, match=r"^checkpoint_every: "):
        sdk.plan("train.py", checkpoint_every=given)  # type: ignore[arg-type]


def test_a_jobs_own_fields_beat_the_file_as_a_setting_does(write) -> None:
    write("train.py", "print(1)")
    write("podlift.toml", '[checkpoint]\nevery = "10m"\nkeep_last = 7\n[local]\ncluster = "workers"\n')
    job = sdk.Job("train.py", checkpoints=sdk.Checkpoints(every_steps=5), resources=sdk.Resources(workers=2))
    plan = sdk.plan(job, local_start="spawn", backend=sdk.Local(network="host"))
    saved = plan.job.checkpoints
    assert (saved.every_steps, saved.every_s, saved.keep_last) == (5, None, 7)
    assert plan.target == sdk.Local(start="spawn", cluster="workers")
    assert plan.tasks == ["worker-0", "worker-1"]


def test_a_setting_of_another_backend_has_no_effect_and_the_plan_says_so(write) -> None:
    write("train.py", "print(1)")
    here = sdk.plan("train.py", vertex_machine="n2-standard-4", vertex_disk_gb=200)
    assert Finding("note", "vertex_machine, vertex_disk_gb: ignored by backend='local'.") in here.findings
    there = sdk.plan("train.py", workers=2, backend="vertex", local_cluster="workers", local_network="isolated")
    assert Finding("note", "local_network: ignored by backend='vertex'.") in there.findings
    assert (
        Finding("warning", "local_cluster='workers': ignored by vertex, which always creates a chief.")
        in there.findings
    )
    assert there.tasks == ["chief-0", "worker-0"]
    with pytest.raises(
        sdk.InputError, match=r"local_start: not together with backend=Local\(\.\.\.\), which sets it too"
    ):
        sdk.plan("train.py", local_start="fork", backend=sdk.Local(start="spawn"))


def test_a_plan_of_the_first_release_is_read_in_the_shape_of_today(tmp_path: Path) -> None:
    plan = Plan.from_json((GOLDEN / "plan.json").read_bytes(), "plan.json")
    assert plan.job.resources == sdk.Resources(workers=2)
    assert plan.target == sdk.Local()
    assert plan.job.retry == sdk.Retry(user_errors=0, infrastructure=0, preemptions=0)
    assert not plan.job.checkpoints.auto
    assert Plan.from_json(plan.to_json(), "plan.json") == plan
    assert json.loads(plan.to_json())["version"] == 2


def test_a_plan_of_version_1_for_vertex_keeps_its_machines(write) -> None:
    write("train.py", "print(1)")
    place = sdk.Vertex(project="my-project", machine="n2-standard-16", disk_gb=200, provisioning="spot")
    made = sdk.plan("train.py", backend=place, retry_user_errors=2, retry_infrastructure=3, retry_preemptions=None)
    old = json.loads(made.to_json())
    moved = {name: old["backend_options"].pop(name) for name in ("machine", "disk_gb", "provisioning")}
    old["job"]["resources"] |= {**moved, "network": "host", "cluster": "chief"}
    old["job"]["code"]["start"] = "auto"
    old["job"]["retry"] = {"user": 2, "infrastructure": 3, "preemption": None}
    again = Plan.from_json(json.dumps({**old, "version": 1}), "plan.json")
    assert (again.job, again.target) == (made.job, made.target)


def test_a_run_of_the_first_release_that_failed_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, run_dir = tmp_path / "mine", tmp_path / "old" / "runs" / GOLDEN.name
    project.mkdir()
    (project / "train.py").write_text("print('resumed')\n")
    shutil.copytree(GOLDEN, run_dir)
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["project"] = str(project)
    (run_dir / "plan.json").write_text(json.dumps(plan))
    (final,) = run_dir.glob("events/*.final.json")
    record = json.loads(final.read_text())
    final.write_text(json.dumps({**record, "data": {"state": "FAILED", "reason": "user_error", "failure": None}}))
    run = sdk.attach(run_dir)
    run.resume(code="current")
    run.wait(60)
    assert [line.text for line in run.logs(task="worker-0", attempt=2)] == ["resumed"]


def test_every_group_has_its_word() -> None:
    assert {table_of(name)[0] for name in table.SETTINGS} == {"", *TABLES}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("wait", "x", "--timeout-s", "3"), "--timeout-s is now --timeout."),
        (("cancel", "x", "--grace-s", "0"), "--grace-s is now --grace."),
        (
            ("preflight", "x.py", "--limit-gb", "1", "--keras", "legacy", "--limit-s", "3"),
            "--limit-s is now --time-limit.",
        ),
    ],
)
def test_an_earlier_flag_of_a_verb_is_an_error_that_names_the_new_one(here, words: tuple[str, ...], said: str) -> None:
    shown = here(*words)
    assert (shown.code, said in shown.stderr) == (2, True)
    if words[0] == "preflight":
        assert "--limit-gb is now --memory-limit-gb." in shown.stderr
        assert "--keras is now --code-keras." in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("wait", "x", "--timeout"),
        ("cancel", "x", "--grace"),
        ("logs", "x", "--since"),
        ("preflight", "x.py", "--time-limit"),
    ],
)
def test_every_time_span_is_written_in_the_same_way(here, words: tuple[str, ...]) -> None:
    shown = here(*words, "soon")
    assert (shown.code, f"{words[-1]}: must be a duration" in shown.stderr) == (2, True)
    assert "must be a duration" not in here(*words, "1h30m").stderr
