"""Which folder is packaged, and from where its modules load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec
from support import REPO

import sdk
from sdk.errors import InputError
from sdk.packaging import project, tree
from sdk.packaging.ignore import IgnoreRules

pytestmark = [pytest.mark.process]


def files(plan: sdk.Plan) -> list[str]:
    return [file.path for file in plan.code.files]


@pytest.mark.parametrize("mark", ["pyproject.toml", "podlift.toml", ".git/HEAD"])
def test_the_project_is_the_nearest_folder_above_the_entry_that_has_a_mark(write, mark: str) -> None:
    write(f"inner/{mark}")
    write("pyproject.toml")
    write("other.py")
    write("inner/lib.py")
    write("inner/jobs/train.py", "import lib\n")
    plan = sdk.plan("inner/jobs/train.py")
    assert (Path(plan.code.project).name, plan.code.program) == ("inner", "jobs/train.py")
    assert plan.code.roots == ["jobs", ""]
    assert "other.py" not in files(plan)


def test_without_a_mark_below_the_home_folder_the_scripts_folder_is_the_project(write, tmp_path, monkeypatch) -> None:
    write("home/jobs/train.py", "import near\n")
    write("home/jobs/near.py")
    write("home/pyproject.toml")
    write("pyproject.toml")
    monkeypatch.setenv("HOME", str(tmp_path / "project" / "home"))
    assert files(sdk.plan("home/jobs/train.py")) == ["near.py", "train.py"]
    for mark in ("pyproject.toml", "home/pyproject.toml"):
        (tmp_path / "project" / mark).unlink()
    assert files(sdk.plan("home/jobs/train.py")) == ["near.py", "train.py"]


def test_a_mark_on_another_file_system_is_not_followed() -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == shm.parent.stat().st_dev:
        pytest.skip("no second file system")
    assert project.above(shm) is None


@pytest.mark.parametrize(
    ("toml", "folder", "roots"),
    [
        ("", "src", ["src", ""]),
        ('[tool.setuptools]\npackage-dir = {"" = "lib"}', "lib", ["lib", ""]),
        ('[tool.setuptools.packages.find]\nwhere = ["python"]', "python", ["python", ""]),
        ('[tool.hatch.build.targets.wheel]\npackages = ["code/pkg"]', "code", ["code", ""]),
        ('[[tool.poetry.packages]]\ninclude = "pkg"\nfrom = "lib"', "lib", ["lib", ""]),
        ('[tool.setuptools]\npackages = ["pkg"]', "", [""]),
        ('[tool]\nsetuptools = 3\npoetry = []\nhatch = {build = "x"}', "", [""]),
    ],
)
def test_the_builds_own_source_folder_goes_first_on_the_path(write, toml: str, folder: str, roots: list[str]) -> None:
    write("pyproject.toml", toml)
    write(f"./{folder}/pkg/__init__.py")
    write(f"./{folder}/pkg/train.py", "import pkg\ndef main(): ...\n")
    assert sdk.plan("pkg.train:main").code.roots == roots


def test_the_mark_that_some_editors_put_before_a_file_is_no_content(write) -> None:
    write("pyproject.toml", '\ufeff[project]\nname = "a"\nversion = "1"\ndependencies = ["numpy"]\n')
    write("train.py", "\ufeffimport numpy\n")
    assert "1 of pyproject.toml: numpy" in str(sdk.plan("train.py"))


def job(entry: str, **code) -> sdk.Job:
    return sdk.Job(entry, code=sdk.Code(**code))


def test_a_folder_beside_the_project_is_packaged_where_it_lies_and_its_sources_load(write, monkeypatch) -> None:
    write("libs/common/pyproject.toml")
    write("libs/common/src/common/__init__.py", "WORD = 'from common'")
    write("libs/unused/x.py")
    write("shared/tables.json", "[1]")
    write("services/train/pyproject.toml")
    program = "import common, json\nprint(common.WORD, json.load(open('../../shared/tables.json')))\n"
    write("services/train/train.py", program)
    with pytest.raises(sdk.InputError, match="imports 'common'"):
        sdk.plan("services/train/train.py")
    monkeypatch.chdir("services/train")
    plan = sdk.plan(job("train.py", include=("../../libs/common", "../../shared")))
    assert plan.code.program == "services/train/train.py"
    assert plan.code.roots == ["services/train", "libs/common/src", "libs/common", "shared"]
    assert files(plan) == [
        "libs/common/pyproject.toml",
        "libs/common/src/common/__init__.py",
        "services/train/pyproject.toml",
        "services/train/train.py",
        "shared/tables.json",
    ]
    run = sdk.submit(plan)
    run.result(60)
    assert [line.text for line in run.logs()] == ["from common [1]"]


def test_packages_and_modules_beside_the_project_are_included_but_for_ignored_files(write, monkeypatch) -> None:
    write(".gitignore", "*.bin\n")
    write("common/__init__.py")
    write("common/x.bin", "1")
    write("tools/extra.py")
    write("app/requirements.txt")
    write("app/train.py", "import common, extra\n")
    monkeypatch.chdir("app")
    plan = sdk.plan(job("train.py", include=("../common", "../tools/extra.py")))
    assert plan.code.roots == ["app", "", "tools"]
    assert "common/__init__.py" in files(plan) and "common/x.bin" not in files(plan)


def test_a_nested_project_named_by_a_requirement_loads_from_its_sources(write) -> None:
    write("libs/common/pyproject.toml", '[project]\nname = "common"\nversion = "1"\n')
    write("libs/common/src/common/__init__.py")
    write("data/x.csv")
    write("requirements.txt", "-e ./libs/common\n")
    write("train.py", "import common\n")
    assert sdk.plan("train.py").code.roots == ["", "libs/common/src", "libs/common"]
    assert sdk.plan(job("train.py", include=("data",))).code.roots == ["", "libs/common/src", "libs/common"]


@pytest.mark.parametrize(
    ("include", "said"),
    [
        ("../comon", "Did you mean 'common'?"),
        ("..", "contains the project itself"),
        ("/etc/hostname", "only '/' in common, which is shared"),
        ("data/*.csv", "does not match any file. Received: 'data/*.csv'"),
        ("a\0b", "does not match any file. Received: 'a\\x00b'"),
    ],
)
def test_an_include_that_leads_nowhere_is_named(write, monkeypatch, include: str, said: str) -> None:
    write("common/x.py")
    write("app/requirements.txt")
    write("app/train.py", "print(1)")
    monkeypatch.chdir("app")
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan(job("train.py", include=(include,)))
    assert said in str(caught.value)


def test_ignored_files_can_be_left_out_brought_back_and_included(write) -> None:
    write("train.py", "print(1)")
    write(".gitignore", "data/\n*.log\n/build\nsub/deep.txt\n")
    write(".podliftignore", "!kept.log\nnotes/\n")
    for path in ("data/a.csv", "data/b.csv", "x.log", "kept.log", "build/y", "pkg/build/z", "notes/n", "sub/deep.txt"):
        write(path, path)
    write("sub/.gitignore", "*.bin\n!good.bin\n")
    write("sub/bad.bin", "1")
    write("sub/good.bin", "2")
    plan = sdk.plan(job("train.py", include=("data/a.csv",), exclude=("pkg",)))
    kept = [".gitignore", ".podliftignore", "data/a.csv", "kept.log", "sub/.gitignore", "sub/good.bin", "train.py"]
    assert files(plan) == kept
    assert sorted(plan.code.left_out) == [
        "build/ (in .gitignore)",
        "data/ (in .gitignore)",
        "notes/ (in .podliftignore)",
        "pkg/ (in exclude)",
        "sub/bad.bin (in .gitignore)",
        "sub/deep.txt (in .gitignore)",
        "x.log (in .gitignore)",
    ]


def test_the_ignore_rules_agree_with_git(write, tmp_path: Path) -> None:
    project = write("train.py", "print(1)").parent
    write(".gitignore", "# c\n*.tmp\n!keep.tmp\n/top\nfold/\n**/deep/*.x\na?c\n[xy].z\n\\#hash\ntrail\\ \n")
    for name in (
        *("a.tmp", "keep.tmp", "top", "in/top", "fold/x", "in/fold/y", "in/deep/f.x"),
        *("abc", "x.z", "z.z", "#hash", "trail "),
    ):
        write(name, name)
    write("in/.gitignore", "!top\n*.q\n")
    write("in/r.q", "1")
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    listed = subprocess.run(
        ["git", "-c", "core.excludesFile=", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=project, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    # A folder of which everything is ignored is packaged empty: git knows no such thing.
    packaged = [path for path in files(sdk.plan("train.py")) if not path.endswith("/")]
    assert packaged == sorted(listed.strip("\0").split("\0"))


PARTS = st.sampled_from(["a", "b", "*", "**", "?", "[ab]", "*.x", "a.x", "/", "!", "\\", " ", "#", "("])


@given(
    st.lists(st.lists(PARTS, max_size=5).map("".join), max_size=6),
    st.lists(st.sampled_from(["a", "b", "a.x", "(", "#"]), min_size=1, max_size=4).map("/".join),
    st.sampled_from(["", "/"]),
)
def test_a_file_that_no_rule_matches_is_judged_as_one_that_some_do(lines: list[str], path: str, end: str) -> None:
    try:
        spec = GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return
    assert (IgnoreRules.of(lines, "").why(path + end) is not None) == bool(spec.check_file(path + end).include)


def test_files_that_look_like_secrets_stay_here_and_are_named(write) -> None:
    write("train.py", "print(1)")
    write(".env", "TOKEN=1")
    write(".env.example", "TOKEN=")
    write("keys/service-account.json", "{}")
    write("keys/mine.json", json.dumps({"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nx"}))
    write("keys/id_rsa", "x")
    write("keys/server.pem", "-----BEGIN RSA PRIVATE KEY-----\nMII")
    write("keys/public.pem", "-----BEGIN CERTIFICATE-----\nMII")
    write("credentials.py", "x = 1")
    write("emulator.log", f"export PODLIFT_EMULATOR=http://127.0.0.1:9000/{'0a' * 16}\n")
    write("requests.log", f"GET http://127.0.0.1:9000/{'0a' * 20}\n")
    plan = sdk.plan("train.py")
    assert files(plan) == [".env.example", "credentials.py", "keys/public.pem", "requests.log", "train.py"]
    named = ".env, emulator.log, keys/id_rsa, keys/mine.json, keys/server.pem, keys/service-account.json."
    assert f"looks like a secret: {named}" in str(plan)
    included = sdk.plan(job("train.py", include=(".env", "keys/mine.json")))
    assert {".env", "keys/mine.json"} <= set(files(included))
    assert ".env, " not in str(included)


def test_the_five_largest_files_are_named_with_control_characters_as_escapes(write) -> None:
    write("train.py", "print(1)")
    write("a\nb\x1b[2J.bin", "x" * 150_000)
    for number in range(6):
        write(f"data{number}.bin", "x" * (20_000 * (number + 1)))
    (shown,) = [line for line in str(sdk.plan("train.py")).splitlines() if line.startswith("largest")]
    others = "data5.bin (120.0 kB), data4.bin (100.0 kB), data3.bin (80.0 kB), data2.bin (60.0 kB)"
    assert shown == rf"largest      a\nb\x1b[2J.bin (150.0 kB), {others}"


def test_too_many_files_are_refused_with_the_fullest_folders(write, monkeypatch) -> None:
    monkeypatch.setattr(tree, "MAX_FILES", 20)
    write("train.py", "print(1)")
    for number in range(30):
        write(f"images/cats/{number}.png")
    with pytest.raises(sdk.InputError, match=r"more than 20 files.*images/ \(30\), images/cats/ \(30\)"):
        sdk.plan("train.py")


def test_a_program_starts_where_its_user_stands(write, monkeypatch, root: Path) -> None:
    write("pyproject.toml")
    write("data.txt", "top")
    write("jobs/data.txt", "jobs")
    write("jobs/train.py", "print(open('data.txt').read())\n")
    assert sdk.plan("jobs/train.py").code.cwd == ""
    monkeypatch.chdir("jobs")
    plan = sdk.plan("train.py")
    assert plan.code.cwd == "jobs"
    run = sdk.submit(plan)
    run.result(60)
    assert [line.text for line in run.logs()] == ["jobs"]
    monkeypatch.chdir("/")
    assert sdk.plan(str(Path(plan.code.project) / "jobs" / "train.py")).code.cwd == ""


def test_planning_writes_nothing_but_the_cache_of_its_reads(write, tmp_path: Path, monkeypatch) -> None:
    write("train.py", "print(1)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = [*tmp_path.rglob("*")]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path), "PYTHONPATH": str(REPO)}
    subprocess.run([sys.executable, "-m", "sdk", "plan", "train.py"], env=env, check=True)
    written = {*tmp_path.rglob("*")} - {*before, tmp_path / "cache"}
    assert [path for path in written if not path.is_relative_to(tmp_path / "cache" / "podlift")] == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.parametrize("name", ["podlift.toml", "pyproject.toml"])
def test_a_pipe_in_the_place_of_a_project_file_and_one_that_is_no_toml_are_refused(write, name: str) -> None:
    file = write("train.py", "print(1)").with_name(name)
    os.mkfifo(file)
    with pytest.raises(InputError, match="is not a file"):
        project.read_toml(file)
    file.unlink()
    write(name, "[tool")
    with pytest.raises(InputError, match=rf"{name}' is not TOML"):
        sdk.plan("train.py")
