"""Lock files: exact versions with their markers, from uv.lock through uv, and from the standard's pylock.toml."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from reading import read, refused

import sdk
from sdk.packaging.requirements import lock
from sdk.packaging.requirements.read import gather
from sdk.process import uv

pytestmark = pytest.mark.process

LOCK = Path(__file__).with_name("app.uv.lock")
SCRIPTS = sysconfig.get_path("scripts")


def test_a_uv_lock_gives_exact_versions_with_the_markers_of_every_way_to_them(write) -> None:
    write("pyproject.toml", "[project]\nname = 'app'\nversion = '0'\ndependencies = ['click', 'new']\n")
    write("uv.lock", LOCK.read_text())
    write("../libs/common/pyproject.toml", "[project]\nname = 'common'\ndependencies = ['attrs']\n")
    requirements = read()
    assert requirements.source == "uv.lock"
    assert requirements.folders == ("../libs/common",)
    assert requirements.options == ()
    assert requirements.lines == (
        "anyio==4.16.0",
        "attrs==26.1.0",
        "certifi==2026.10.18",
        "click==8.5.1",
        'colorama==0.4.6 ; sys_platform == "win32"',
        'exceptiongroup==1.3.1 ; python_full_version < "3.11"',
        "h11==0.16.0",
        "httpcore==1.0.9",
        "httpx==0.28.1",
        "idna==3.20",
        "socksio==1.0.0",
        'typing-extensions==4.16.0 ; python_full_version < "3.15"',
    )
    assert [note.message for note in requirements.notes] == [
        "uv.lock is older than pyproject.toml, which also requires new. Next: uv lock."
    ]


HASH = f"sha256:{'ab' * 32}"
LOCKED = f"""
version = 1
requires-python = ">=3.10"
conflicts = [[{{ package = "app", extra = "cpu" }}, {{ package = "app", extra = "gpu" }}]]
manifest = {{ members = ["app", "lib"] }}
[[package]]
name = "app"
source = {{ virtual = "packages/app" }}
dependencies = [
    {{ name = "a", extra = ["x"] }}, {{ name = "g" }}, {{ name = "lib" }}, {{ name = "own" }}, {{ name = "u" }},
]
optional-dependencies = {{ cpu = [{{ name = "torch" }}], gpu = [{{ name = "torch" }}] }}
[[package]]
name = "torch"
version = "2.0"
source = {{ registry = "https://never.example" }}
wheels = [{{ url = "https://never.example/torch-2.0-py3-none-any.whl", hash = "{HASH}" }}]
[[package]]
name = "lib"
source = {{ editable = "packages/lib" }}
dependencies = [{{ name = "b", marker = "os_name == 'nt'" }}]
[[package]]
name = "a"
version = "1.0+local"
source = {{ registry = "https://torch.example/whl" }}
wheels = [{{ url = "https://torch.example/a-1.0+local-py3-none-any.whl", hash = "{HASH}" }}]
optional-dependencies = {{ x = [{{ name = "c" }}] }}
[[package]]
name = "b"
version = "1.0"
source = {{ registry = "https://pypi.org/simple" }}
sdist = {{ url = "https://pypi.org/b-1.0.tar.gz", hash = "{HASH}" }}
[[package]]
name = "c"
version = "1.0"
source = {{ registry = "https://pypi.org/simple" }}
sdist = {{ url = "https://pypi.org/c-1.0.tar.gz", hash = "{HASH}" }}
[[package]]
name = "g"
version = "1.0"
source = {{ git = "https://host.example/g?subdirectory=d&rev=main#{"0123456789" * 4}" }}
[[package]]
name = "own"
version = "1.0"
source = {{ registry = "wheels" }}
wheels = [{{ path = "own-1.0-py3-none-any.whl", hash = "{HASH}" }}]
[[package]]
name = "u"
version = "1"
source = {{ url = "https://host.example/u-1-py3-none-any.whl" }}
wheels = [{{ url = "https://host.example/u-1-py3-none-any.whl", hash = "{HASH}" }}]
"""


@pytest.fixture
def member(write) -> Path:
    """A member of a workspace with the lock above it."""
    write("pyproject.toml", "[tool.uv.workspace]\nmembers = ['packages/*']\nexclude = ['packages/other']\n")
    write("uv.lock", LOCKED)
    write("packages/lib/pyproject.toml", "[project]\nname = 'lib'\nversion = '0'\n")
    return write("packages/app/pyproject.toml", "[project]\nname = 'app'\nversion = '0'\ndependencies = ['a']\n").parent


def test_a_workspaces_lock_counts_for_its_members_from_wherever_packages_come(write, member: Path) -> None:
    write("packages/app/wheels/readme.txt")
    write("uv.lock", LOCKED.replace('registry = "wheels"', 'registry = "packages/app/wheels"'))
    requirements = gather("auto", member)
    assert requirements.source == "uv.lock"
    assert requirements.lines == (
        "a==1.0+local",
        'b==1.0 ; os_name == "nt"',
        "c==1.0",
        f"g @ git+https://host.example/g@{'0123456789' * 4}#subdirectory=d",
        "own==1.0",
        "u @ https://host.example/u-1-py3-none-any.whl",
    )
    assert requirements.options == (
        "--extra-index-url https://torch.example/whl",
        f"--find-links {member / 'wheels'}",
    )
    assert requirements.folders == ("../lib",)
    (note,) = requirements.notes
    assert note.level == "note" and "--extra-index-url https://torch.example/whl and --find-links" in note.message


def test_a_workspaces_lock_is_not_read_for_a_project_that_is_no_member(write, member: Path) -> None:
    for folder in ("elsewhere", "packages/other"):
        other = write(f"{folder}/pyproject.toml", "[project]\nname = 'other'\ndependencies = ['z']\n").parent
        assert gather("auto", other).lines == ("z",)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("version = 1\n", "version = 2\n", "unsupported schema version (v2"),
        ("version = 1\n", "version =\n", "TOML parse error at line 2"),
        ('name = "app"', 'name = "apps"', "Missing workspace member `app`"),
        ('version = "1.0+local"', "", "missing `version` field"),
        ("host.example/u-1", "u:S3CRET@host.example/u-1", "contains credentials"),
        ('registry = "wheels"', 'registry = "../wheels"', "--find-links does not name a folder of the project"),
    ],
)
def test_a_lock_that_cannot_be_used_says_why(write, member: Path, old: str, new: str, reason: str) -> None:
    assert old in LOCKED
    write("uv.lock", LOCKED.replace(old, new))
    with pytest.raises(sdk.InputError) as caught:
        gather("auto", member)
    assert reason in str(caught.value)
    assert "CRET" not in str(caught.value)


def test_the_command_of_the_guide_makes_a_lock_with_the_same_requirements(write, monkeypatch) -> None:
    write("pyproject.toml", "[project]\nname = 'app'\nversion = '0'\ndependencies = ['click']\n")
    write("uv.lock", LOCK.read_text())
    write("../libs/common/pyproject.toml", "[project]\nname = 'common'\n")
    command = ["uv", *["export", "--format", "pylock.toml", "-o", "pylock.toml", "--frozen", "--offline", "--quiet"]]
    subprocess.run(command, check=True, env={**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}, timeout=60)
    (line,) = set(read("pylock.toml").lines) - set(read().lines)
    assert line.startswith("iniconfig=="), "uv exports the default group dev as well"


def test_a_uv_that_does_not_answer_is_a_mistake_of_the_lock(write, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write("bin/uv", "#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    write("uv.lock", LOCK.read_text())
    monkeypatch.setattr(uv, "program", lambda: str(program))
    monkeypatch.setattr(lock, "_LIMIT_S", 0.2)
    assert "timed out after 0.2 seconds" in refused()[0]


def test_a_lock_of_the_standard_is_read_when_it_is_named(write) -> None:
    write("common/pyproject.toml", "[project]\nname = 'common'\n")
    write("pylock.toml", """
        lock-version = "1.0"
        created-by = "pip"
        [[packages]]
        name = "numpy"
        version = "2.0"
        marker = "python_version >= '3.10'"
        index = "https://mine.example/simple"
        sdist = { url = "https://mine.example/numpy-2.0.tar.gz", hashes = { sha256 = "ab" } }
        [[packages]]
        name = "x"
        vcs = { type = "git", url = "https://host.example/x", commit-id = "abc" }
        [[packages]]
        name = "y"
        archive = { url = "https://host.example/y.zip", subdirectory = "a", hashes = { sha256 = "ab" } }
        [[packages]]
        name = "common"
        directory = { path = "common" }
        """)  # fmt: skip
    requirements = read("pylock.toml")
    assert requirements.lines == (
        'numpy==2.0 ; python_version >= "3.10"',
        "x @ git+https://host.example/x@abc",
        "y @ https://host.example/y.zip#subdirectory=a",
    )
    assert requirements.options == ("--index-url https://mine.example/simple",)
    assert requirements.folders == ("common",)
    assert read().source == ""


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        ("version='1'\nmarker=\"'dev' in dependency_groups\"", "x: its marker depends on extras or groups"),
        ("version='one'", "Invalid version: 'one'"),
        ("archive={path='x-1.zip'}", "hashes"),
        ("archive={path='wheels/x-1-py3-none-any.whl', hashes={sha256='ab'}}", "there is no such folder here"),
        ("archive={url='https://u:S3CRET@host.example/x.zip', hashes={sha256='ab'}}", "contains credentials"),
    ],
)
def test_a_lock_of_the_standard_that_cannot_be_used_says_why(write, package: str, reason: str) -> None:
    files = "" if "archive" in package else "sdist={url='https://host.example/x-1.tar.gz', hashes={sha256='ab'}}\n"
    start = "lock-version='1.0'\ncreated-by='me'\n"
    write("pylock.toml", f"{start}[[packages]]\nname='x'\n{package}\n{files}")
    (problem,) = refused("pylock.toml")
    assert problem.startswith("pylock.toml:")
    assert reason in problem
    assert "CRET" not in problem
    write("pylock.toml", "lock-version='2.0'\ncreated-by='me'\npackages=[]\n")
    assert "2.0" in refused("pylock.toml")[0]
