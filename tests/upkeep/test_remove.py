"""Removed, kept and untouchable files: folders of real runs, made older than they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import LIMIT_S, REPO, finished_run, full_only, until

import sdk
from sdk.cli import remove as verb
from sdk.clock import SystemClock
from sdk.packaging.runtime_archive import runtime_archive
from sdk.process import venv as environments
from sdk.records.recorder import read_events
from sdk.upkeep import remove

pytestmark = [pytest.mark.process]

DAY_S = 86400.0


def age(path: Path, days: float) -> None:
    """Make everything of a file or folder so old."""
    at = time.time() - days * DAY_S
    for each in [*path.rglob("*"), path] if path.is_dir() else [path]:
        os.utime(each, (at, at), follow_symlinks=False)


def names(removing: remove.RemovalPlan | remove.RemovalResult, kind: str = "run") -> list[str]:
    return sorted(item.name for item in removing.items if item.kind == kind)


def why(removing: remove.RemovalPlan | remove.RemovalResult) -> dict[str, str]:
    return {Path(each.path).name: each.why for each in removing.skipped}


@pytest.fixture
def make(root: Path) -> Callable[..., Path]:
    """Make a run that is over, and its bundle: `make("a", days=40)`."""

    def maker(name: str, days: float = 0.0, digest: str = "", state: str = "SUCCEEDED", reason: str = "done") -> Path:
        digest = digest or name[0] * 64
        run = Path(finished_run(root, f"{name}-aaaaaa", digest=digest).url)
        final = next(run.glob("events/*.final.json"))
        record = json.loads(final.read_text())
        final.write_text(json.dumps({**record, "data": {"state": state, "reason": reason}}))
        age(run, days)
        bundle = root / "bundles" / f"{digest}.tar"
        bundle.parent.mkdir(exist_ok=True)
        bundle.write_bytes(b"x" * 1000)
        age(bundle, days)
        return run

    return maker


@pytest.fixture
def find(root: Path) -> Callable[..., remove.RemovalPlan]:
    """Look at the root with nothing kept for being new."""

    def finder(*, keep: int = 0, days: float = 30, **more: object) -> remove.RemovalPlan:
        return remove.find(root, older_than_s=days * DAY_S, keep=keep, now=time.time(), **more)

    return finder


def environment() -> dict[str, str]:
    """Return the variables of a process, with other caches than the user's who runs the tests."""
    return {**os.environ, "PYTHONPATH": str(REPO), "XDG_CACHE_HOME": f"{os.environ['PODLIFT_ROOT']}-cache"}


def command(*words: str, before: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    line = [*(before or []), sys.executable, "-m", "sdk", "remove", *words]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)


def test_old_runs_and_their_bundles_go_and_the_newest_stay_however_old_they_are(make, find, root: Path) -> None:
    for number, name in enumerate("abcdef"):
        make(name, days=10 * number)
    assert names(find()) == ["d-aaaaaa", "e-aaaaaa", "f-aaaaaa"]
    assert names(find(keep=4)) == ["e-aaaaaa", "f-aaaaaa"]
    assert names(find(keep=6)) == []
    assert names(find(keep=1, days=0)) == [f"{name}-aaaaaa" for name in "bcdef"]
    found = find()
    assert names(found, "bundle") == [name * 64 for name in "def"]
    assert sdk.runs(root=root)[-1].id == "f-aaaaaa", "looking changes nothing"
    removed = remove.remove(found)
    assert (removed.items, removed.problems) == (found.items, ())
    assert sorted(path.name for path in (root / "runs").iterdir()) == ["a-aaaaaa", "b-aaaaaa", "c-aaaaaa"]
    assert sorted(path.name for path in (root / "bundles").iterdir()) == [f"{name * 64}.tar" for name in "abc"]


def test_sizes_count_all_files_and_ages_the_last_change_of_any_file(make, find) -> None:
    run = make("a", days=40)
    (run / "weights").write_bytes(b"x" * 5000)
    os.link(run / "weights", run / "again")
    age(run, 40)
    wanted = sum(path.stat().st_size for path in run.rglob("*") if path.is_file() and path.name != "again")
    item = next(item for item in find().items if item.kind == "run")
    assert (item.size_bytes, item.state, round(item.age_s / DAY_S)) == (wanted, "SUCCEEDED", 40)
    assert find().size_bytes == wanted + 1000
    (run / "notes.txt").write_text("looked at it today")
    assert names(find()) == []


def test_a_copied_root_of_cloud_runs_and_names_in_other_folders_are_understood_too(make, find, root: Path) -> None:
    runs = {name: make(name, days=40 if name == "a" else 50) for name in "abc"}
    spec = runs["a"] / "jobs" / "0001.launch_spec.json"
    spec.parent.mkdir()
    spec.write_text(json.dumps({"runtime": {"sha256": "1" * 64}}))
    age(runs["a"], 40)
    files = [*(root / "runtime" / f"{digit * 64}.tar" for digit in "12"), root / "entrypoints" / f"{'3' * 64}.py"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * 100)
        age(file, 1.5)
    assert (names(find(keep=1), "runtime"), names(find(keep=1), "entrypoint")) == (["2" * 64], ["3" * 64])
    age(files[1], 0.9)
    assert names(find(keep=1), "runtime") == [], "it is younger than a day"
    age(files[1], 1.5)
    (root / "schedules").mkdir()
    # The text of the record has a letter before the name: of its escaped line end.
    (root / "schedules" / "nightly.json").write_text(json.dumps({"run": "it was\nb-aaaaaa", "entrypoint": "3" * 64}))
    (root / ".cache").mkdir()
    (root / ".cache" / "x.json").write_text("c-aaaaaa")
    found = find(keep=1)
    assert (names(found), names(found, "entrypoint")) == (["c-aaaaaa"], [])
    assert why(found) == {"b-aaaaaa": f"{str(root / 'schedules' / 'nightly.json')!r} names it"}
    assert names(remove.remove(found), "runtime") == ["2" * 64]
    assert [file.exists() for file in files] == [True, False, True]


def test_a_container_copy_of_podlift_leaves_the_cache_after_a_long_time_without_use(find, tmp_path: Path) -> None:
    archive = runtime_archive(tmp_path / "cache").path
    age(archive, 40)
    assert names(find(cache=tmp_path / "cache"), "cache") == [archive.name]
    old = find(cache=tmp_path / "cache")
    assert runtime_archive(tmp_path / "cache").path == archive
    assert why(remove.remove(old)) == {archive.name: "it was used again"}
    age(archive, 40)
    assert names(remove.remove(find(cache=tmp_path / "cache")), "cache") == [archive.name]
    assert not archive.exists()


def test_only_a_run_that_is_over_goes_and_a_damaged_one_stays_with_its_bundle(make, find, root: Path) -> None:
    states = ("SUCCEEDED", "done"), ("LOST", "supervisor_lost"), ("RUNNING", "training"), ("PENDING", "submitted")
    for name, (state, reason) in zip("abcd", states, strict=True):
        make(name, days=400, state=state, reason=reason)
    shutil.rmtree(make("e", days=40) / "events")
    (root / "runs" / "f-aaaaaa" / "events").mkdir(parents=True)  # of a submit of this moment
    found = find()
    assert (names(found), names(found, "bundle")) == (["a-aaaaaa", "b-aaaaaa"], ["a" * 64, "b" * 64])
    said = why(found)
    assert "its records (events/) are missing" in said.pop("e-aaaaaa")
    assert said == {"c-aaaaaa": "the run is RUNNING", "d-aaaaaa": "the run is PENDING"}
    age(root / "runs" / "f-aaaaaa", 1)
    assert "f-aaaaaa" in why(find())


def test_a_run_that_trains_stays_and_one_with_a_killed_supervisor_goes(write, root: Path) -> None:
    write("train.py", "import time; time.sleep(600)")
    run = sdk.submit("train.py")
    later = time.time() + 400 * DAY_S
    try:
        found = remove.find(root, keep=0, now=later)
        assert found.items == ()
        # It may begin to run meanwhile.
        assert why(found) in [{run.id: f"the run is {state}"} for state in ("PENDING", "RUNNING")]
        until(lambda: read_events(run.plan.paths, ("started",)), run.why)
        started = read_events(run.plan.paths, ("started",))
        os.kill(int(started[0].data["supervisor"].split(":")[1]), signal.SIGKILL)
        assert run.wait(LIMIT_S).state is sdk.State.LOST
    finally:
        run.cancel(grace_s=0)
    remove.remove(remove.find(root, keep=0, now=later))
    assert [list((root / name).iterdir()) for name in ("runs", "bundles")] == [[], []]


def test_an_item_that_changed_since_the_search_stays_with_a_sentence(make, find, root: Path) -> None:
    for name in "abc":
        make(name, days=40)
    found = find()
    (root / "runs" / "a-aaaaaa" / "new").write_text("x")
    next((root / "runs" / "b-aaaaaa").glob("events/*.final.json")).unlink()
    shutil.rmtree(root / "runs" / "c-aaaaaa")
    removed = remove.remove(found)
    assert names(removed) == []
    assert names(removed, "bundle") == ["c" * 64], "the runs that stay need theirs"
    said = {"a-aaaaaa": "it has changed", "b-aaaaaa": "the run is RUNNING"}
    bundles = {f"{name * 64}.tar": "a run or a record needs it" for name in "ab"}
    assert why(removed) == {**said, **bundles}, "what somebody else has removed is not worth a word"
    assert removed.problems == ()


def test_a_bundle_stays_while_any_plan_needs_it_or_it_is_young(make, find, root: Path) -> None:
    make("a", days=40, digest="5" * 64)
    make("b", days=1, digest="5" * 64)
    lonely, fresh = root / "bundles" / f"{'1' * 64}.tar", root / "bundles" / f"{'2' * 64}.tar"
    for bundle in (lonely, fresh, root / "bundles" / f"{'5' * 64}.tar"):
        bundle.write_text("x")
        age(bundle, 0.02 if bundle is fresh else 1)
    assert (names(find()), names(find(), "bundle")) == (["a-aaaaaa"], ["1" * 64])


def test_a_bundle_that_a_submit_takes_up_is_put_back(make, find, root: Path) -> None:
    bundle = root / "bundles" / f"{'a' * 64}.tar"
    make("a", days=40)
    found = find()
    os.utime(bundle)
    assert why(remove.remove(found)) == {bundle.name: "a submit or a registration uses it"}
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]
    age(bundle, 40)
    found = find()
    make("b", digest="a" * 64)
    age(bundle, 40)
    assert why(remove.remove(found)) == {bundle.name: "a run or a record needs it"}


@pytest.mark.parametrize("times", [2, full_only(8)])
def test_a_submit_finds_its_bundle_whatever_is_removed_at_that_moment(write, root: Path, tmp_path: Path, times) -> None:
    write("train.py", f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n")

    def tidy() -> None:
        remove.remove(remove.find(root, older_than_s=0, keep=0, now=time.time()))

    for _ in range(times):
        (tmp_path / "go").unlink(missing_ok=True)
        for bundle in root.glob("bundles/*"):
            age(bundle, 1)
        tidying = threading.Thread(target=tidy)
        tidying.start()
        run = sdk.submit("train.py")
        tidying.join()
        (tmp_path / "go").touch()
        status = run.wait(LIMIT_S)
        assert status.state is sdk.State.SUCCEEDED, status.failure
    # Whether the last removal saw the end of the run before is a matter of moments.
    remove.remove(remove.find(root, older_than_s=0, keep=1, now=time.time() + 60))
    assert [info.id for info in sdk.runs()] == [run.id]


@pytest.mark.parametrize("damage", ["no JSON", "", "[" * 100_000, "plans", "jobs"])
def test_no_bundle_goes_while_a_run_does_not_tell_which_one_it_needs(make, find, root: Path, damage: str) -> None:
    make("a", days=40)
    plan = make("b", days=40) / "plan.json"
    if damage in ("plans", "jobs"):
        (plan.parent / damage).symlink_to(damage)  # a folder that cannot be listed
    else:
        plan.write_text(damage)
        assert "b-aaaaaa" in why(find()), "and the damaged run is reported"
        assert why(find())["bundles"].startswith(f"it is unknown what {str(plan)!r} needs")
    found = find()
    assert (names(found), names(found, "bundle")) == (["a-aaaaaa"], [])
    assert why(found)["bundles"].startswith("it is unknown what ")
    before = plan.read_text()
    remove.remove(found)
    assert plan.read_text() == before and len(list((root / "bundles").iterdir())) == 2


def test_a_foreign_file_is_reported_and_stays(make, find, root: Path, tmp_path: Path) -> None:
    make("a", days=40)
    (root / "runs" / "notes").mkdir()
    (root / "runs" / "todo.txt").write_text("x")
    (root / "bundles" / "readme").write_text("x")
    (root / "bundles" / f".{'a' * 64}.tar.0123.part").write_text("x")
    (root / "bundles" / f".{'b' * 64}.tar.0123.part").write_text("of a submit of this moment")
    os.mkfifo(root / "runs" / "a-aaaaaa" / "pipe")
    (root / "runs" / "pipe-aaaaaa").mkdir()
    os.mkfifo(root / "runs" / "pipe-aaaaaa" / "plan.json")
    for path in [*root.glob("bundles/[!.]*"), *root.glob(f"bundles/.{'a' * 64}*"), *root.glob("runs/*")]:
        age(path, 40)
    said = why(find())
    assert set(said) == {"notes", "pipe-aaaaaa", "bundles"}
    assert said["pipe-aaaaaa"] == "its plan.json is not a file"
    assert names(find()) == names(remove.remove(find())) == ["a-aaaaaa"]
    assert {path.name for path in (root / "runs").iterdir()} == {"notes", "todo.txt", "pipe-aaaaaa"}


def test_links_are_never_followed(make, find, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "data").write_text("mine")
    (outside / "deep").chmod(0o500)
    run = make("a", days=40)
    (run / "data").symlink_to(outside / "deep", target_is_directory=True)
    elsewhere = make("b", days=40).rename(tmp_path / "b-aaaaaa")
    (root / "runs" / "b-aaaaaa").symlink_to(elsewhere, target_is_directory=True)
    age(run, 40)
    removed = remove.remove(find())
    assert (names(removed), names(removed, "bundle")) == (["a-aaaaaa"], ["a" * 64])
    assert why(find())["b-aaaaaa"] == "it is a link, and links are not followed"
    assert (outside / "deep" / "data").read_text() == "mine"
    assert (outside / "deep").stat().st_mode & 0o777 == 0o500
    assert (elsewhere / "plan.json").exists()


def test_folders_of_the_root_that_are_links_are_left_alone(make, find, root: Path, tmp_path: Path) -> None:
    make("a", days=40)
    for name in ("runs", "bundles"):
        (root / name).rename(tmp_path / name)
        (root / name).symlink_to(tmp_path / name, target_is_directory=True)
    assert find().items == ()
    assert set(why(find())) == {"runs", "bundles"}
    (root / "bundles").unlink()
    (tmp_path / "bundles").rename(root / "bundles")
    assert find().items == (), "with the runs out of sight nobody knows which bundles they need"


def test_where_records_lie_behind_a_link_everything_stays(make, find, root: Path, tmp_path: Path) -> None:
    make("a", days=40)
    (tmp_path / "elsewhere").mkdir()
    (root / "latest").symlink_to(root / "runs" / "a-aaaaaa")
    assert names(find()) == ["a-aaaaaa"], "a link within the root hides no record"
    (root / ".hidden").symlink_to(tmp_path / "elsewhere")
    assert names(find()) == ["a-aaaaaa"], "hidden folders are not searched"
    for folder, link in ((root, "models"), (root / "mine", "rec.json")):
        folder.mkdir(exist_ok=True)
        (folder / link).symlink_to(tmp_path / "elsewhere")
        found = find()
        assert found.items == () and "is a link out of the root" in why(found)["a-aaaaaa"]
        (folder / link).unlink()


def test_a_root_with_the_prefix_runs_keeps_files_that_are_not_uploaded(make, find, tmp_path: Path) -> None:
    copies = tmp_path / "cache" / "gs" / "bucket" / "runs"
    shutil.copytree(make("a", days=40), copies / "runs" / "a-aaaaaa")
    (copies / "runs" / "my notes").mkdir()
    age(copies, 40)
    assert names(find(cache=tmp_path / "cache"), "copy") == ["a-aaaaaa"], "a copy, which everything is uploaded of"


def test_the_rest_of_an_interrupted_removal_goes_the_next_time(make, find, root: Path) -> None:
    run = make("a")
    half = run.rename(run.with_name(".a-aaaaaa.0123abcd.removed"))
    (half / "plan.json").unlink()
    bundle = root / "bundles" / f"{'a' * 64}.tar"
    bundle.rename(bundle.with_name(f".{'a' * 64}.tar.0123abcd.removed"))
    assert names(find(), "remains") == [half.name]
    later = remove.find(root, keep=0, now=time.time() + 3601)
    assert (names(later, "remains"), later.skipped) == ([half.name, f".{'a' * 64}.tar.0123abcd.removed"], ())
    assert remove.remove(later).problems == ()
    assert [list((root / name).iterdir()) for name in ("runs", "bundles")] == [[], []]


def test_caches_go_by_their_age(find, tmp_path: Path) -> None:
    files = tmp_path / "cache" / "files"
    files.mkdir(parents=True)
    for name, days in (("old.json", 40), ("new.json", 1), ("old.txt", 40)):
        (files / name).write_text("{}")
        age(files / name, days)
    found = find(cache=tmp_path / "cache")
    assert [(item.kind, item.name) for item in found.items] == [("cache", "old.json")]
    remove.remove(found)
    assert {path.name for path in files.iterdir()} == {"new.json", "old.txt"}
    assert find().items == (), "without a cache folder none is looked at"


def test_an_environment_goes_when_no_run_has_asked_for_it_for_long_and_none_uses_it(root: Path, tmp_path: Path) -> None:
    cache, python = tmp_path / "cache", environments.EnvironmentSpec(python=sys.executable)
    how = dict(cache=cache, log=tmp_path / "log", environ=os.environ, clock=SystemClock(), stop=lambda: False)
    with environments.using(python, **how) as interpreter:
        home = interpreter.parents[2]
    later = time.time() + 40 * DAY_S
    assert remove.find(root, now=time.time(), cache=cache).items == ()
    with environments.using(python, **how):
        assert remove.find(root, now=later, cache=cache).items == ()
    found = remove.find(root, now=later, cache=cache)
    assert [(item.kind, item.path) for item in found.items] == [("environment", str(home))]
    assert round(found.items[0].age_s / DAY_S) == 40
    with environments.using(python, **how):
        assert why(remove.remove(found)) == {home.name: "it was used again, or a part of it could not be removed"}
    remove.remove(remove.find(root, now=later + 1, cache=cache))
    assert not home.exists()


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(sdk.InputError) as caught:
        remove.find("\0", older_than_s=float("nan"), keep=-1, now=0.0)
    assert len(caught.value.problems) == 3


def as_somebody(*power: str) -> list[str]:
    """Return the words that run a program as somebody who may do no more than is said; none are needed but for root."""
    if os.geteuid() != 0:
        return []
    words = ["setpriv", *power]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("there is no way to give up the rights of root")
    return words


POWERLESS = ("--bounding-set=-all", "--inh-caps=-all")
READER = ("--reuid=65534", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override")
ALL = ("--older-than", "0s", "--keep", "0", "--yes")


def test_a_folder_that_cannot_be_removed_is_a_sentence_and_the_others_go(make, root: Path) -> None:
    for name in "ab":
        make(name)
    before = as_somebody(*POWERLESS)
    if not before:
        pytest.skip("needs files of somebody else")
    (root / "runs" / "a-aaaaaa" / "foreign").mkdir()
    (root / "runs" / "a-aaaaaa" / "foreign" / "file").write_text("x")
    os.chown(root / "runs" / "a-aaaaaa" / "foreign", 65534, 65534)
    shown = command(*ALL, before=before)
    assert (shown.returncode, "Traceback" in shown.stderr) == (3, False)
    assert [line.split("\t")[1] for line in shown.stdout.splitlines()] == ["b-aaaaaa"]
    assert "a-aaaaaa' was removed only in part, and the next call removes the rest: Permission denied" in shown.stderr
    assert [info.id for info in sdk.runs() if not info.id.startswith(".")] == []
    again = command(*ALL, before=before)
    assert (again.returncode, ".removed' was not removed: Permission denied" in again.stderr) == (3, True)
    assert command(*ALL).returncode == 0
    assert list((root / "runs").iterdir()) == []


def test_runs_of_another_user_stay(make, root: Path) -> None:
    make("a")
    before = as_somebody(*READER)
    if not before:
        pytest.skip("needs files of somebody else")
    shown = command(*ALL, before=before)
    assert "a-aaaaaa: it belongs to another user." in shown.stderr
    assert [info.id for info in sdk.runs()] == ["a-aaaaaa"]


def test_a_run_that_may_not_be_read_is_reported_and_one_with_closed_folders_goes(make, root: Path) -> None:
    (make("a") / "plan.json").chmod(0)
    make("b").chmod(0)
    run = make("c")
    for name in ("closed", "readable/closed", "readable"):
        (run / name).mkdir(parents=True, exist_ok=True)
        (run / name / "file").write_text("x")
    for name, mode in (("closed", 0), ("readable/closed", 0), ("readable", 0o500)):
        (run / name).chmod(mode)
    age(root / "bundles", 1)
    shown = command(*ALL, before=as_somebody(*POWERLESS))
    (root / "runs" / "b-aaaaaa").chmod(0o700)
    assert (shown.returncode, shown.stdout.split("\t")[:3]) == (0, ["run", "c-aaaaaa", "SUCCEEDED"]), shown.stderr
    assert len(shown.stdout.splitlines()) == 1 and not run.exists()
    for name in ("a-aaaaaa", "b-aaaaaa"):
        assert f"{name}: " in shown.stderr
    assert "it is unknown what" in shown.stderr
    assert len(list((root / "bundles").iterdir())) == 3


def test_nothing_that_is_mounted_in_a_run_is_emptied(make, root: Path, tmp_path: Path) -> None:
    mine, place = tmp_path / "mine", make("a", days=40) / "data"
    mine.mkdir()
    place.mkdir()
    (mine / "data").write_text("mine")
    age(root / "runs" / "a-aaaaaa", 40)
    line = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    shown = command(*ALL, before=["unshare", "-m", "/bin/sh", "-c", line, "sh", str(mine), str(place)])
    if "unshare" in shown.stderr or "mount:" in shown.stderr:
        pytest.skip("this user cannot mount")
    assert f"a-aaaaaa: something is mounted in it, at {str(place)!r}." in shown.stderr
    assert (mine / "data").read_text() == "mine"


def test_the_command_removes_nothing_until_it_is_told_to(make, root: Path) -> None:
    make("a", days=40)
    make("b")
    shown = command("--keep", "1")
    assert shown.returncode == 0
    kinds = [line.split("\t")[:2] for line in shown.stdout.splitlines()]
    assert kinds == [["run", "a-aaaaaa"], ["bundle", "a" * 64]]
    assert "Would remove 1 run, 1 bundle: " in shown.stderr
    assert shown.stderr.endswith("Nothing was removed. Next: podlift remove --keep 1 --yes\n")
    assert (root / "runs" / "a-aaaaaa").exists()
    done = command("--keep", "1", "--yes")
    assert (done.returncode, done.stdout) == (0, shown.stdout)
    assert done.stderr.startswith("Removed 1 run, 1 bundle: ")
    assert command().stderr == f"There is nothing to remove below {str(root)!r}.\n"
    assert [info.id for info in sdk.runs()] == ["b-aaaaaa"]


def test_with_json_the_command_answers_with_one_object(make, root: Path) -> None:
    make("a", days=40)
    (root / "runs" / "notes").symlink_to(root)
    found = json.loads(command("--keep", "0", "--json").stdout)
    assert set(found) == {"version", "items", "left", "problems", "removed", "root", "size_bytes"}
    assert [(item["kind"], item["state"]) for item in found["items"]] == [("run", "SUCCEEDED"), ("bundle", "")]
    assert found["size_bytes"] == sum(item["size_bytes"] for item in found["items"])
    assert found["left"] == [{"path": str(root / "runs" / "notes"), "why": "it is a link, and links are not followed"}]
    assert (found["removed"], found["problems"]) == (False, [])
    assert json.loads(command("--keep", "0", "--json", "--yes").stdout) == {
        **found,
        "removed": True,
        "items": [{**item, "age_s": pytest.approx(item["age_s"], abs=LIMIT_S)} for item in found["items"]],
    }


@pytest.mark.full
def test_several_removals_at_once_share_the_work_without_a_word(make, root: Path) -> None:
    for number in range(40):
        make(f"a{number}", days=40)
    words = [sys.executable, "-m", "sdk", "remove", "--keep", "0", "--yes"]
    env = environment()
    both = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "ab"]
    for process in both:
        _, said = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, "podlift:" in said, "damaged" in said) == (0, False, False), said
    assert [list((root / name).iterdir()) for name in ("runs", "bundles")] == [[], []]


@pytest.mark.parametrize("age", ["", "d", "30", "-1d", "1y"])
def test_an_age_needs_a_unit(age: str) -> None:
    with pytest.raises(sdk.InputError, match="--older-than: must be a duration with the units") as caught:
        verb.remove(age)
    assert repr(age) in str(caught.value)
