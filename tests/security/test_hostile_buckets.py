"""A bucket that another user may write to: its objects are never written outside of the folder of their run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import hostile
import pytest
from support import FINISHED_RUN, files_of_a_run, full_only

import sdk
from sdk.clock import SystemClock
from sdk.errors import CorruptRunError
from sdk.job.layout import RunPaths
from sdk.records.sync.index import SyncedRun
from sdk.storage.emulator import endpoint

URL = f"gs://mine/runs/{FINISHED_RUN.name}"
Put = Callable[[str, bytes], None]


@pytest.fixture
def put(mine) -> Put:
    """Write an object of a run that has ended."""

    def write(name: str, data: bytes) -> None:
        mine.blob(f"runs/{FINISHED_RUN.name}/{name}").upload_from_string(data)

    for name, data in files_of_a_run(emulator=endpoint()):
        growing = name.startswith("attempts/") and "/payload" not in name
        write(f"{name}/{0:015d}.part" if growing else name, data)
    return write


@pytest.fixture
def outside(tmp_path: Path) -> Callable[[], dict[str, int]]:
    """Return the modes of all files and links here, except in the copy of the run."""

    def found() -> dict[str, int]:
        copies = [path for path in (tmp_path / "here").rglob("*") if path.name == FINISHED_RUN.name]
        return {
            str(path): path.lstat().st_mode
            for path in tmp_path.rglob("*")
            if not path.is_dir() and not any(path.is_relative_to(copy) for copy in copies)
        }

    (tmp_path / "private").write_text("mine")
    (tmp_path / "private").chmod(0o600)
    return found


def test_the_outputs_of_a_run_in_a_bucket_come_with_their_links_and_modes(put: Put, tmp_path: Path) -> None:
    put("outputs/work/a/run.sh", b"echo")
    put("outputs/work/plain", b"x")
    links = {"outputs/work/latest": "a/run.sh", "outputs/work/a/up": "../plain", "outputs/work/plain": "elsewhere"}
    put("outputs.json", json.dumps({"links": links, "executable": ["outputs/work/a/run.sh"]}).encode())
    sdk.attach(URL).download(tmp_path / "got")
    got = tmp_path / "got/work"
    assert (os.readlink(got / "latest"), os.readlink(got / "a/up")) == ("a/run.sh", "../plain")
    assert os.access(got / "a/run.sh", os.X_OK) and not os.access(got / "plain", os.X_OK)


@pytest.mark.parametrize("name", hostile.PATHS)
def test_an_object_with_a_name_that_leads_elsewhere_is_not_downloaded(put, outside, tmp_path: Path, name: str) -> None:
    put("outputs/good", b"x")
    try:
        put(f"outputs/{name}" if not name.startswith("/") else f"outputs/x{'/..' * 30}{tmp_path}/owned", b"owned")
    except Exception as error:  # the service itself has refused some names
        assert "Invalid" in str(error) or "400" in str(error)
        return
    before, run = outside(), sdk.attach(URL)
    with pytest.raises(CorruptRunError, match=r"names files outside the folder of the run: .* Nothing was downloaded"):
        run.download(tmp_path / "got")
    assert outside() == before


@pytest.mark.parametrize(("name", "leads_to"), hostile.LINKS)
def test_a_link_that_leads_elsewhere_is_not_made(put: Put, outside, tmp_path: Path, name: str, leads_to: str) -> None:
    put("outputs/good", b"x")
    put("outputs.json", json.dumps({"links": {name: leads_to}, "executable": []}).encode())
    before, run = outside(), sdk.attach(URL)
    if name.startswith("/"):
        run.download(tmp_path / "got")  # it belongs to no folder of the run
        assert outside().keys() - before == {str(tmp_path / "got/good"), str(tmp_path / "got/.podlift-folder")}
        return
    with pytest.raises(CorruptRunError, match="names files outside the folder of the run"):
        run.download(tmp_path / "got")
    assert outside() == before


def test_nothing_is_written_through_a_link_that_the_copy_has_already(put: Put, outside, tmp_path: Path) -> None:
    put("outputs/work/private", b"owned")
    run = sdk.attach(URL)
    Path(run.plan.paths.outputs).mkdir(parents=True)
    Path(run.plan.paths.outputs, "work").symlink_to(tmp_path)
    with pytest.raises(OSError, match="is a link that leaves the folder of the run"):
        run.download(tmp_path / "got")
    assert (tmp_path / "private").read_text() == "mine"


def test_a_mode_is_given_to_files_of_the_run_alone(put: Put, outside, tmp_path: Path) -> None:
    put("outputs/good", b"x")
    names = ["outputs/../../../../../private", f"{tmp_path}/private", "outputs/none", "outputs/good"]
    put("outputs.json", json.dumps({"links": {}, "executable": names}).encode())
    before = outside()
    sdk.attach(URL).download(tmp_path / "got")
    assert {path: outside()[path] for path in before} == before
    assert os.access(tmp_path / "got/good", os.X_OK)


def test_an_index_of_outputs_that_is_none_is_one_sentence(put: Put, tmp_path: Path) -> None:
    for name, data in hostile.JSON.items():
        put("outputs.json", data)
        if name in ("a list", "infinite", "surrogate"):  # an index without links
            sdk.attach(URL).download(tmp_path / "got")
            continue
        with pytest.raises(CorruptRunError, match=r"outputs.json' is damaged: .* Nothing was downloaded"):
            sdk.attach(URL).download(tmp_path / "got")


def test_a_record_of_a_resume_names_a_plan_of_its_run_or_is_refused(put, outside, monkeypatch, tmp_path: Path) -> None:
    for at, plan in enumerate(("../../../private", "/etc/hostname", "a/b", "../a", "", 5, None, ["x"], "x" * 5000)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here" / str(at)))
        record = {"version": 1, "time": 1.0, "data": {"plan": plan, "attempts": 1}}
        put("events/0000.client-1.000001.resumed.json", json.dumps(record).encode())
        before = outside()
        with pytest.raises(sdk.PodliftError):
            sdk.attach(URL).status()
        assert outside() == before


@pytest.mark.parametrize(
    "where",
    [
        "plan.json",
        full_only("events/0000.client-1.000001.resumed.json"),
        full_only("events/0001.chief-0.000009.failed.json"),
        "events/0000.supervisor.000003.final.json",
        full_only("heartbeat.json"),
    ],
)
def test_json_of_any_shape_is_read_or_refused_in_a_sentence(put: Put, monkeypatch, tmp_path: Path, where: str) -> None:
    noticed = 0
    for name, data in hostile.JSON.items():
        # Another machine, which has no copy of the run.
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        put(where, data)
        try:
            run = sdk.attach(URL)
            for look in (run.status, run.why, run.progress, run.last_metrics, lambda run=run: list(run.logs())):
                look()
            # A damaged record of an attempt hides nothing else.
            noticed += any(where in finding for finding in run.status().findings)
        except sdk.InputError as error:
            noticed += 1
            assert "Nothing was changed." in str(error), name
        assert [info.id for info in sdk.runs(root="gs://mine")] == [FINISHED_RUN.name]
    assert noticed or where == "heartbeat.json"


def test_the_copy_of_a_run_is_where_its_id_says(put: Put, tmp_path: Path) -> None:
    for url in ("gs://mine/runs/..", "gs://mine/runs/../../x-aaaaaa", "gs://mine/x/../runs/digits-aaaaaa"):
        with pytest.raises(sdk.InputError):
            sdk.attach(url)
    paths = RunPaths(str(tmp_path / "runs" / FINISHED_RUN.name))
    SyncedRun(paths, URL, SystemClock()).pull_plan()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [FINISHED_RUN.name]
