"""One name for each setting, as a keyword, a flag, a variable and in the file."""

from __future__ import annotations

import pytest

import sdk
from sdk.job.findings import Finding
from sdk.job.setting_names import table_of, tables
from sdk.planning.settings import table


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
