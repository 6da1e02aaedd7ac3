"""The names of a run, wherever one is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import sdk


def test_latest_and_the_beginning_of_an_id_name_a_run_for_every_verb_and_for_attach(ended_runs, here) -> None:
    digits, other = ended_runs("digits-aaaaaa", "mnist-bbbbbb")
    assert sdk.attach("latest").url == other
    assert sdk.attach("dig").url == digits
    assert sdk.attach("digits-aaaaaa").url == digits
    more = [
        ("get", "dig", "results"),
        ("diff", "dig", "digits-a"),
        ("status", "latest", "--root", Path(digits).parents[1]),
    ]
    for words in (*((verb, "dig") for verb in ["status", "why", "logs", "wait", "cancel", "checkpoints"]), *more):
        shown = here(*map(str, words))
        assert (shown.code, "No run" in shown.stderr) == (0, False), (words, shown)
    assert "digits-aaaaaa" in here("resume", "dig").stderr


def test_verbs_that_only_read_take_the_latest_run_by_default(ended_runs, here) -> None:
    ended_runs("digits-aaaaaa", "mnist-bbbbbb")
    for verb in ("status", "why", "logs", "wait", "checkpoints"):
        shown = here(verb)
        assert (shown.code, shown) == (0, here(verb, "latest"))
    assert here("get").stderr.startswith("mnist-bbbbbb: ")
    assert here("cancel").code == here("resume").code == 2


def test_a_run_that_goes_on_from_another_may_name_it_in_the_same_ways(ended_runs, project) -> None:
    ended_runs("digits-aaaaaa", "digits-bbbbbb")
    for name, said in (
        ("latest", "run digits-bbbbbb has no such checkpoint. Received: 'last'"),
        ("digits-a@7", "run digits-aaaaaa has no such checkpoint. Received: '7'"),
        ("digits", "resume_from: 2 runs have ids with this prefix"),
        ("nothing", "resume_from: No such run"),
    ):
        with pytest.raises(sdk.InputError, match="(?s)" + said.replace("(", r"\(")):
            sdk.plan(sdk.Job("train.py", checkpoints=sdk.Checkpoints(resume_from=name)))


def test_the_beginning_of_several_ids_lists_them_newest_first(ended_runs, here) -> None:
    ended_runs(*(f"digits-{letter * 6}" for letter in "abcdefgh"))
    with pytest.raises(sdk.InputError) as caught:
        sdk.attach("digits")
    assert not isinstance(caught.value, sdk.RunNotFoundError)
    assert "8 runs have ids with this prefix, newest first: digits-hhhhhh, digits-gggggg," in str(caught.value)
    assert "digits-cccccc and 2 more." in str(caught.value)
    shown = here("logs", "digits")
    assert (shown.code, "Received: 'digits'" in shown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("word", "said"), [("digitz-aaaaaa", "Did you mean 'digits-aaaaaa'?"), ("zzz", "The newest is 'digits-")]
)
def test_a_word_that_names_no_run_lists_the_existing_ones(ended_runs, word: str, said: str) -> None:
    ended_runs("digits-aaaaaa")
    with pytest.raises(sdk.RunNotFoundError, match=said.replace("?", r"\?")):
        sdk.attach(word)


def test_a_root_without_runs_has_no_latest(root: Path) -> None:
    with pytest.raises(sdk.RunNotFoundError, match="There are no runs"):
        sdk.attach("latest")


def test_a_folder_of_a_runs_name_does_not_hide_the_run(ended_runs, here, tmp_path: Path, monkeypatch) -> None:
    (url,) = ended_runs("digits-aaaaaa")
    monkeypatch.chdir(tmp_path)
    for name in ("digits-aaaaaa", "latest", "digits"):
        (tmp_path / name).mkdir(exist_ok=True)
        assert sdk.attach(name).url == url
    elsewhere = tmp_path / "elsewhere" / "runs" / "other-cccccc"
    shutil.copytree(url, elsewhere)
    (elsewhere / "plan.json").write_text((elsewhere / "plan.json").read_text().replace("digits-aaaaaa", "other-cccccc"))
    monkeypatch.chdir(elsewhere.parent)
    assert sdk.attach("other-cccccc").url == str(elsewhere), "in a folder of runs their names are paths"


@pytest.mark.process
def test_every_verb_finds_a_run_in_the_folder_into_which_it_was_brought(write, here, tmp_path: Path) -> None:
    write("train.py", "open('weights', 'w').write('w')")
    run = sdk.submit("train.py")
    run.result(60)
    assert here("get", run.id).code == 0
    assert Path(run.id, "work", "weights").is_file()
    for words in (("status",), ("logs",), ("get",), ("diff", run.id)):
        shown = here(*words, run.id)
        assert (shown.code, "no run" in shown.stderr.lower()) == (0, False), (words, shown)
    assert "has succeeded" in here("resume", run.id).stderr
    assert "It has no checkpoints" in here("plan", "train.py", "--checkpoint-resume-from", run.id).stderr
    shown = here("status", run.id, "--root", str(tmp_path / "other"))
    assert "it holds the outputs that podlift get copied. Next: name the root of the run (--root)." in shown.stderr


def test_a_folder_that_is_no_run_is_not_the_latest(ended_runs, root: Path) -> None:
    (url,) = ended_runs("digits-aaaaaa")
    (root / "runs" / "broken-bbbbbb").mkdir()
    (root / "runs" / "empty-bbbbbb").mkdir()
    (root / "runs" / "empty-bbbbbb" / "plan.json").touch()
    assert sdk.attach("latest").url == url
