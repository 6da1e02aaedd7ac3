"""The list of runs where several roots are configured, and references to runs in them."""

from __future__ import annotations

import json
import os
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
