"""A text like a credential is refused where it would be stored, with the way to do it right."""

from __future__ import annotations

import pytest

import sdk

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
    assert (
        "WANDB_API_KEY looks like a credential" in problem
        and "the request of the job" in problem
        and "--env" not in problem
    )
