"""Bad input is refused with sentences, a text like a credential where it would be stored; steps that decide read nothing."""

from __future__ import annotations

import builtins
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import input_error

import sdk
from sdk.errors import Problems
from sdk.job.payload import Drill
from sdk.planning.decide import decide
from sdk.planning.look import look
from sdk.planning.pack import pack
from sdk.planning.prepare import planned_again
from sdk.planning.settings.merge import Destination, gather
from sdk.planning.validate import validate


def test_all_mistakes_are_in_one_error_and_nothing_is_written(write, root: Path) -> None:
    write("train.py", "import helpr\n")
    parts = ("[0] is nan", "workers: Must be", "Did you mean 'cpu'?", "Unknown backend", "'foo-bar'", "'helpr'")
    with input_error(*parts, problems=6):
        sdk.submit("train.py", args=[float("nan")], workers=0, accelerator="gpu", backend="lokal", name="Foo Bar")
    assert not root.exists()


def test_a_truth_value_is_no_number_or_duration(write) -> None:
    write("train.py", "print(1)")
    numbers = {"timeout": True, "max_cost_usd": True, "limit_grace": False, "workers": True, "max_steps": True}
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan("train.py", checkpoint_every=True, **numbers)
    assert {sentence.partition(":")[0] for sentence in caught.value.problems} == {*numbers, "checkpoint_every"}
    assert "timeout: must be a number. Received: True." in caught.value.problems
    for most_usd in (True, math.inf, math.nan, "5"):
        with pytest.raises(sdk.InputError) as caught:
            sdk.schedule("train.py", name="s", cron="0 3 * * 1", notify_skips=True, max_cost_usd_per_month=most_usd)  # type: ignore[arg-type]
        assert caught.value.problems == (
            "notify_skips must be a whole number, 0 or more. Received: True.",
            f"max_cost_usd_per_month must be a finite number above 0. Received: {most_usd!r}.",
        )
    limit_usd = np.float64(5)
    made = sdk.schedule("train.py", name="s", cron="0 3 * * 1", max_cost_usd_per_month=limit_usd)
    assert made.record.spec.max_cost_usd_per_month == 5, "a number of NumPy is one"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("train.py/runs", "is a file"),
        ("s3://bucket/podlift", "A root is a folder or gs://BUCKET/PREFIX"),
        ("gs://Bucket/podlift", "not a location in a bucket"),
    ],
)
def test_a_root_that_is_no_place_for_runs_is_refused(write, place: str, said: str) -> None:
    write("train.py", "print(1)")
    with pytest.raises(sdk.InputError, match=said):
        sdk.submit("train.py", root=place)
    with pytest.raises(sdk.InputError, match=said):
        sdk.plan("train.py", root=place)


@pytest.mark.process
def test_a_root_inside_a_run_is_refused(write) -> None:
    write("train.py", "print(1)")
    run = sdk.submit("train.py")
    run.result(60)
    with pytest.raises(sdk.InputError, match=f"lies inside the run '{run.url}'"):
        sdk.plan("train.py", root=f"{run.url}/checkpoints/mine")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every_steps": 0}, "every_steps"),
        ({"every_s": 0.0}, "every_s"),
        ({"keep_last": 0}, "keep_last"),
        ({"best": "highest:loss"}, "min:NAME, or max:NAME"),
        ({"on_busy": "wait"}, "on_busy"),
    ],
)
def test_a_policy_of_checkpoints_that_makes_no_sense_is_refused(given: dict, said: str) -> None:
    with pytest.raises(sdk.InputError, match=said):
        sdk.Checkpoints(**given)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_without_permission_is_refused(write, tmp_path: Path) -> None:
    write("train.py", "print(1)")
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(sdk.InputError, match="no permission"):
        sdk.submit("train.py", root=tmp_path / "locked" / "root")


def test_inside_a_task_submit_and_plan_raise_with_the_guard_as_the_fix(write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("train.py", "print(1)")
    plan = sdk.plan("train.py")
    monkeypatch.setenv("PODLIFT_TASK", "chief-0")
    for call in (lambda: sdk.submit("train.py"), lambda: sdk.plan("train.py"), lambda: sdk.submit(plan)):
        with pytest.raises(sdk.InsideTaskError, match="if __name__ == '__main__':"):
            call()


def test_what_is_no_run_and_no_program_is_named_and_a_missing_run_is_reported(write) -> None:
    for ref in ("a\0b", "~nosuchuser/x", "x" * 5000):
        with pytest.raises(sdk.InputError, match="The run is not a usable path"):
            sdk.attach(ref)
    for ref in ("digits-aaaaaa", "nowhere/digits"):
        with pytest.raises(sdk.RunNotFoundError, match="No such run"):
            sdk.attach(ref)
    for what in (len, None):
        with pytest.raises(sdk.InputError, match="This cannot be run"):
            sdk.plan(what)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not a run of podlift"),
        ("", "is not a plan of podlift"),
        ("{}", "is not a plan of podlift"),
        ('{"version": 99}', "written by another podlift: version 99"),
        ('{"version": 1}', "it is damaged"),
        ("[]", "is not a plan of podlift"),
        ("\x00\xff", "is not a plan of podlift"),
    ],
)
def test_a_foreign_or_damaged_run_directory_is_reported_and_left_alone(tmp_path, content, said) -> None:
    folder = tmp_path / "root" / "runs" / "digits-aaaaaa"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "plan.json").write_text(content, encoding="latin-1")
    with pytest.raises(sdk.CorruptRunError, match=said):
        sdk.attach(folder)
    assert [info.problem != "" and info.status is None for info in sdk.runs()] == [True]
    assert [path.name for path in folder.iterdir()] == ([] if content is None else ["plan.json"])


@pytest.mark.parametrize("bad", ["~nosuch/x", "x" * 5000, "a\0b", "loop/x"])
@pytest.mark.parametrize("argument", ["entry", "script", "project", "root"])
def test_a_path_that_no_system_takes_is_a_sentence(write, bad: str, argument: str) -> None:
    write("train.py", "print(1)").with_name("loop").symlink_to("loop")
    calls = {
        "entry": lambda: sdk.plan(bad),
        "script": lambda: sdk.plan(f"{bad}/train.py"),
        "project": lambda: sdk.plan(sdk.Job("train.py", code=sdk.Code(project=bad))),
        "root": lambda: sdk.plan("train.py", root=bad),
    }
    with input_error("Received"):
        calls[argument]()


def test_bytes_of_a_shell_that_are_no_text_are_named_and_not_quoted_as_a_codec(write, monkeypatch) -> None:
    write("train.py", "print(1)")
    odd = os.fsdecode(b"\xff")
    with input_error("the value of 'A' holds bytes that are not UTF-8", "--env A"):
        sdk.plan(sdk.Job("train.py", env={"A": odd}))
    with pytest.raises(sdk.InputError, match="The root's name is not UTF-8"):
        sdk.plan("train.py", root=f"/tmp/{odd}")
    with pytest.raises(sdk.InputError, match="vertex_machine: Holds bytes that are not UTF-8"):
        sdk.plan("train.py", backend="vertex", vertex_machine=odd)
    monkeypatch.setenv("A", odd)
    assert sdk.plan(sdk.Job("train.py", env={"A": sdk.FromCaller()})).job.env == {"A": sdk.FromCaller()}


def test_planning_in_a_folder_that_was_removed_is_a_sentence(write, tmp_path: Path) -> None:
    write("train.py", "print(1)")
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    for entry in ("train.py", "train:main", "jobs/train.py"):
        with pytest.raises(sdk.InputError):
            sdk.plan(entry)
    assert sdk.plan(tmp_path / "project" / "train.py").code.program == "train.py"


@pytest.mark.parametrize("field", ["name", "backend", "root"])
@pytest.mark.parametrize("value", [5, b"x", "", ["x"]])
def test_a_target_that_is_no_text_or_empty_is_refused(write, field: str, value: object) -> None:
    write("train.py", "print(1)")
    with input_error(repr(value), problems=1):
        sdk.plan("train.py", **{field: value})  # type: ignore[arg-type]


def test_a_variable_that_is_empty_counts_as_not_set(write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("train.py", "print(1)")
    monkeypatch.setenv("PODLIFT_NAME", "")
    assert sdk.plan("train.py").run_id.startswith("project-")


GITHUB = "ghp_" + "a1B2" * 9


def mistakes(job: sdk.Job, **settings: object) -> list[str]:
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan(job, **settings)  # type: ignore[arg-type]
    return list(caught.value.problems)


def test_all_places_are_named_at_once_and_no_value(write) -> None:
    write("train.py", f"import helper\nTOKEN = {GITHUB!r}\n")
    write("helper.py", f"# a remark\nkey = {GITHUB!r}\n")
    job = sdk.Job("train.py", env={"DB_PASSWORD": "correct horse", "MODE": "quick"}, args=["--token", GITHUB])
    problems = mistakes(job)
    assert [text.partition(" ")[0] for text in problems] == ["env:", "args:", "train.py:2:", "helper.py:2:"]
    assert "--env DB_PASSWORD (FromCaller())" in problems[0] and "--secret DB_PASSWORD=projects/" in problems[0]
    assert not any(GITHUB in text or "correct horse" in text for text in problems)


def test_an_allowed_secret_is_stored(write) -> None:
    write("train.py", f"TOKEN = {GITHUB!r}\n")
    code = {"allow_secret": ["DB_PASSWORD", "args", "train.py"]}
    plan = sdk.plan(sdk.Job("train.py", env={"DB_PASSWORD": "for tests only"}, args=[GITHUB], code=code))
    assert plan.job.env == {"DB_PASSWORD": "for tests only"}


def test_a_copied_variable_stays_as_it_is_here_and_is_refused_in_a_request(write, monkeypatch) -> None:
    write("train.py", "print(1)")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    job = sdk.Job("train.py", env={"WANDB_API_KEY": sdk.FromCaller()})
    assert sdk.plan(job).job.copied == ["WANDB_API_KEY"]
    (problem,) = mistakes(job, backend="vertex")
    assert "WANDB_API_KEY looks like a credential" in problem and "the request of the job" in problem
    assert "--env" not in problem


READS = [
    (os, "stat lstat open listdir scandir readlink getcwd access"),
    (builtins, "open"),
    (socket.socket, "connect"),
    (socket, "getaddrinfo"),
    (time, "time monotonic"),
]


@contextmanager
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail where this thread reads. Servers of other tests run in other threads of the process."""
    here = threading.get_ident()

    def refusing(read: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: object, **keywords: object) -> Any:
            if threading.get_ident() == here:
                pytest.fail(f"a pure step reads: {args}")
            return read(*args, **keywords)

        return called

    with monkeypatch.context() as patched:
        for holder, names in READS:
            for name in names.split():
                patched.setattr(holder, name, refusing(getattr(holder, name)))
        yield


def test_a_read_of_this_thread_is_refused_and_of_another_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor() as threads, nothing_is_read(monkeypatch):
        assert threads.submit(os.listdir, "/").result()
        with pytest.raises(pytest.fail.Exception, match="a pure step reads"):
            os.listdir("/")


@pytest.mark.parametrize(
    "target",
    [
        Destination(backend="local"),
        Destination(backend="vertex", root="gs://bucket/runs"),
        Destination(backend="ray", root="gs://bucket/runs"),
    ],
    ids=lambda target: target.backend,
)
def test_validation_and_decisions_read_no_file(target: Destination, write, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = str(write("train.py", "import keras"))
    given = {"workers": 2, "accelerator": "t4", "inputs": {"a": entry} if target.backend == "local" else {}}
    problems = Problems()
    settings = gather(entry, given, target, {}, problems)
    validate(settings, {}, Problems())  # an import reads files
    with nothing_is_read(monkeypatch):
        wanted = validate(settings, {}, problems)
    world = look(wanted, {"HOME": str(Path(entry).parent)}, problems)
    packed = pack(wanted, world, {}, {})
    decide(wanted, world, packed, "digits-abcdef", starting=False)
    with nothing_is_read(monkeypatch):
        made = decide(wanted, world, packed, "digits-abcdef", starting=False)
    assert (problems.messages, made.run_id, len(made.tasks)) == ([], "digits-abcdef", 2)


def test_the_mistakes_of_all_steps_are_one_error(write) -> None:
    write("train.py", "import nowhere_to_be_found")
    about = {"inputs": {"images": "gone"}, "root": "train.py", "code_requirements": "gone.txt"}
    with input_error("workers", "name", "root", "inputs.images", "gone.txt", "nowhere_to_be_found"):
        sdk.plan("train.py", workers=0, name="A", **about)


def test_the_current_code_of_a_run_is_all_that_changes(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("train.py", "print(1)")
    write("data.txt", "1")
    monkeypatch.setenv("TOKEN", "x")
    env = {"TOKEN": sdk.FromCaller(), "KEY": sdk.Secret("projects/p/secrets/s")}
    monkeypatch.setenv("KEY", "x")
    made = replace(sdk.plan("train.py", inputs={"data": "data.txt"}, env=env), fired=True, drill=Drill(seed=3))
    write("podlift.toml", 'workers = 0\nmodel = "other"\n[local]\nnetwork = "isolated"\n')
    write("train.py", "print(2)")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    again = planned_again(made, os.environ)
    assert again.code.digest != made.code.digest
    assert replace(again, code=made.code, findings=made.findings) == made
