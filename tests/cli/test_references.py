"""The names of a run, wherever one is named, and the list of runs where several roots are configured."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import files_of_a_run, finished_run, heard

import sdk
from sdk.errors import AccessError
from sdk.planning import references
from sdk.storage.emulator import endpoint
from sdk.storage.gcs.files import BucketFiles
from sdk.storage.retry import RetryPolicy


def test_latest_or_a_prefix_names_a_run_for_each_verb_and_readers_take_the_latest(ended_runs, here) -> None:
    digits, other = ended_runs("digits-aaaaaa", "mnist-bbbbbb")
    assert [sdk.attach(name).url for name in ("latest", "dig", "digits-aaaaaa")] == [other, digits, digits]
    of_one = ("status", "why", "logs", "wait", "cancel", "checkpoints")
    more = ("get dig results", "diff dig digits-a", f"status latest --root {Path(digits).parents[1]}")
    for words in (*(f"{verb} dig" for verb in of_one), *more):
        shown = here(*words.split())
        assert (shown.code, "No run" in shown.stderr) == (0, False), (words, shown)
    assert "digits-aaaaaa" in here("resume", "dig").stderr
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


def test_a_root_without_runs_has_no_latest_run_and_a_folder_that_is_none_is_not_it(ended_runs, root) -> None:
    with pytest.raises(sdk.RunNotFoundError, match="There are no runs"):
        sdk.attach("latest")
    (url,) = ended_runs("digits-aaaaaa")
    for name in ("broken-bbbbbb", "empty-bbbbbb"):
        (root / "runs" / name).mkdir()
    (root / "runs" / "empty-bbbbbb" / "plan.json").touch()
    assert sdk.attach("latest").url == url


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


@pytest.fixture
def cloud(mine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """A bucket for runs of Vertex AI, beside the local root: `cloud("digits-bbbbbb")` puts a run there."""
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", "mine")
    monkeypatch.chdir(tmp_path)

    def put(run: str) -> None:
        for name, data in files_of_a_run(run_id=run, root="gs://mine/podlift", emulator=endpoint()):
            mine.blob(f"podlift/runs/{run}/{name}").upload_from_string(data)

    return put


@pytest.fixture
def local(root: Path) -> Callable[[str, float], None]:
    """Put a run into the local root that was submitted so long ago: `local("digits-aaaaaa", 60)`."""

    def put(run: str, age_s: float) -> None:
        os.utime(finished_run(root, run).plan, (time.time() - age_s,) * 2)

    return put


def test_runs_of_all_configured_backends_are_one_list_and_each_is_found_by_its_id(cloud, local, here, root) -> None:
    local("digits-aaaaaa", 3600)
    cloud("digits-bbbbbb")
    local("mnist-cccccc", -3600)
    urls = [f"{root}/runs/mnist-cccccc", "gs://mine/podlift/runs/digits-bbbbbb", f"{root}/runs/digits-aaaaaa"]
    assert [info.url for info in sdk.runs()] == urls
    assert [info.url for info in sdk.runs(limit=2)] == urls[:2]
    assert [info.url for info in sdk.runs(name="digits", limit=1)] == urls[1:2]
    assert [info.url for info in sdk.runs(backend="local")] == [urls[0], urls[2]]
    assert [info.url for info in sdk.runs(root=root)] == [urls[0], urls[2]]
    assert [info.url for info in sdk.runs(root="gs://mine/podlift")] == urls[1:2]
    shown = here("list", "--json")
    assert (shown.code, [each["url"] for each in json.loads(shown.stdout)]) == (0, urls)
    for reference in ("digits-bbbbbb", "digits-b"):
        assert sdk.attach(reference).url == urls[1]
    assert (sdk.attach("latest").url, sdk.attach("latest", root="gs://mine/podlift").url) == (urls[0], urls[1])
    several = "2 runs have ids with this prefix, newest first: digits-bbbbbb, digits-aaaaaa"
    with pytest.raises(sdk.InputError, match=several):
        sdk.attach("digits")
    with pytest.raises(sdk.RunNotFoundError, match="Looked below"):
        sdk.attach("digits-zzzzzz")
    os.utime(root / "runs" / "mnist-cccccc" / "plan.json", (time.time() - 60,) * 2)
    assert sdk.attach("latest").url == urls[1], "the newest of all roots, not of the local one"
    assert here("status").stdout.splitlines()[-1] == "Next: podlift get digits-bbbbbb"
    cloud("mnist-dddddd")
    older = sdk.runs(root="gs://mine/podlift", name="digits", limit=1)
    assert [info.id for info in older] == ["digits-bbbbbb"], "the newest of that name"


def test_a_bucket_among_several_roots_has_seconds_to_answer(cloud, local, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def files(root: str, *, retry: RetryPolicy) -> None:
        limits.append(retry.total_s)
        raise AccessError("403")

    monkeypatch.setattr(references, "open_files", files)
    local("digits-aaaaaa", 60)
    assert [info.id for info in sdk.runs()] == ["digits-aaaaaa"]
    with pytest.raises(AccessError):
        sdk.runs(root="gs://mine/podlift")
    several, alone = limits
    assert several <= 10 < alone


def test_with_the_cloud_configured_a_local_run_is_found_by_its_id_too(cloud, local, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_BACKEND", "vertex")
    local("digits-aaaaaa", 60)
    cloud("digits-bbbbbb")
    assert [info.id for info in sdk.runs()] == ["digits-bbbbbb", "digits-aaaaaa"]
    named = [sdk.attach(run).id for run in ("digits-aaaaaa", "digits-a", "digits-b", "latest")]
    assert named == ["digits-aaaaaa"] * 2 + ["digits-bbbbbb"] * 2


def test_a_run_that_was_copied_into_another_root_is_named_by_its_url(cloud, local, here) -> None:
    local("digits-aaaaaa", 60)
    cloud("digits-aaaaaa")
    where = "gs://mine/podlift/runs/digits-aaaaaa"
    assert here("status").stdout.splitlines()[-1] == f"Next: podlift get {where}"
    with pytest.raises(sdk.InputError, match=f"newest first: {where}, /.*/runs/digits-aaaaaa. Received: 'digits'"):
        sdk.attach("digits")


def test_podlift_remove_names_the_roots_that_list_lists_and_it_did_not_check(cloud, local, here) -> None:
    local("digits-aaaaaa", 60)
    told = "The runs below 'gs://mine/podlift' were not checked. Next: podlift remove --keep 3 --root gs://mine/podlift"
    assert here("remove", "--keep", "3").stderr.splitlines()[-1] == told
    assert "were not checked" not in here("remove", "--root", "gs://mine/podlift").stderr


def test_a_shell_without_the_emulators_variables_is_told_its_line(
    cloud, here, podlift_gcs, tmp_path, monkeypatch
) -> None:
    def refuse(*args: object) -> None:
        raise AccessError("Cannot list gs://mine/podlift: permission denied (403).")

    cloud("digits-bbbbbb")
    sdk.attach("digits-b")
    monkeypatch.setattr(BucketFiles, "matching", refuse)
    known = "where the latest run that is known here belongs"
    lacks = f"If you mean the bucket of the emulator at 127.0.0.1:8123, {known}, use"
    there = ("--root", "gs://mine/podlift")
    copied, emulator = next(tmp_path.glob("here/**/digits-bbbbbb/plan.json")), "127.0.0.1:8123"
    for address, variable, told in ((emulator, "", True), ("", "", False), (emulator, podlift_gcs.url, False)):
        copied.write_text(json.dumps({**json.loads(copied.read_text()), "emulator": address}))
        monkeypatch.setenv("PODLIFT_EMULATOR", variable)
        for words in (("list",), ("why", "latest", *there), ("logs", "digits-b", *there)):
            shown = here(*words)
            assert (shown.code, lacks in shown.stderr) == (3, told), shown.stderr
            assert "permission denied (403)" in shown.stderr.partition(lacks)[2 * told], "the next step comes first"


def test_a_root_that_cannot_be_reached_is_one_line_and_the_others_are_listed(
    cloud, local, here, podlift_gcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    local("digits-aaaaaa", 60)
    podlift_gcs.faults({"kind": "status_before", "status": 403, "operation": "objects.list"})
    shown = here("list")
    assert shown.code == 3
    assert shown.stdout.startswith("digits-aaaaaa\t") and len(shown.stdout.splitlines()) == 1
    (line,) = shown.stderr.splitlines()
    where = f"gs://mine/podlift on the emulator at {urlsplit(podlift_gcs.url).netloc}"
    assert line.startswith(f"podlift: The runs below {where} are not listed: ") and "403" in line
    lines = heard()
    assert [info.id for info in sdk.runs()] == ["digits-aaaaaa"]
    assert len(lines) == 1 and lines[0].startswith(f"The runs below {where} are not listed: ")
    assert here("list", "--backend", "vertex").code == here("list", "--root", "gs://mine/podlift").code == 3
    assert here("list", "--backend", "local").code == 0
    assert sdk.attach("digits-a").id == "digits-aaaaaa"
    with pytest.raises(sdk.RunNotFoundError) as caught:
        sdk.attach("digits-b")
    looked, unknown = caught.value.problems
    assert looked.startswith("No such run. Received: 'digits-b'. Looked below ")
    assert unknown.startswith(f"The runs below {where} are not listed: ")
    shown = here("status")
    assert (shown.code, shown.stdout.split()[1]) == (0, "digits-aaaaaa")
    assert shown.stderr.startswith(f"podlift: The runs below {where} are not listed: ")
    assert shown.stderr.endswith("The newest run of the other roots that fits 'latest' is digits-aaaaaa.\n")
    for verb, *more in (("cancel",), ("resume",), ("models add",), ("checkpoints", "--pin", "last")):
        shown = here(*verb.split(), "latest", *more)
        assert shown.code == 2 and f"Next: podlift {verb} with the id of the run that you mean." in shown.stderr
    assert here("cancel", "digits-aaaaaa").code == 0, "an id in this machine's root needs no bucket"
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", "Not A Bucket")
    shown = here("list", "--json")
    assert (shown.code, [each["id"] for each in json.loads(shown.stdout)]) == (3, ["digits-aaaaaa"])
    assert "The runs of vertex are not listed: " in shown.stderr and "PODLIFT_VERTEX_BUCKET" in shown.stderr
