"""Lock files: exact versions, under the markers of every way that leads to them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import Marker

import sdk
from sdk.packaging.requirements import lock
from sdk.packaging.requirements.read import Requirements, gather

LOCK = Path(__file__).with_name("app.uv.lock")


def read(setting: str | tuple[str, ...] = "auto") -> Requirements:
    return gather(setting, Path.cwd())


def refused(setting: str | tuple[str, ...] = "auto") -> list[str]:
    with pytest.raises(sdk.InputError) as caught:
        read(setting)
    return list(caught.value.problems)


def test_a_lock_that_uv_wrote_gives_exact_versions_with_the_markers_of_every_way_to_them(write) -> None:
    write("pyproject.toml", "[project]\nname = 'app'\ndependencies = ['click', 'new']\n")
    write("uv.lock", LOCK.read_text())
    write("../libs/common/pyproject.toml", "[project]\nname = 'common'\ndependencies = ['attrs']\n")
    found = read()
    assert found.source == "uv.lock"
    assert found.folders == ("../libs/common",)
    assert found.options == ()
    assert found.lines == (
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
        'typing-extensions==4.16.0 ; python_full_version < "3.11" or python_full_version < "3.15"',
    )
    assert [note.message for note in found.notes] == [
        "uv.lock is older than pyproject.toml, which also requires new. Next: uv lock."
    ]


LOCKED = """
version = 1
[[package]]
name = "app"
source = { virtual = "packages/app" }
dependencies = [
    { name = "torch", marker = "extra == 'extra-3-app-cpu'" },
    { name = "a", extra = ["x"] },
    { name = "g" },
    { name = "u" },
]
[[package]]
name = "torch"
version = "2.0"
source = { registry = "https://torch.example/whl" }
[[package]]
name = "a"
version = "1.0+local"
source = { registry = "https://torch.example/whl" }
[package.optional-dependencies]
x = [{ name = "b" }, { name = "a", extra = ["y"] }]
y = [{ name = "c", marker = "os_name == 'nt' or extra != 'extra-3-app-cpu'" }]
[[package]]
name = "b"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "a" }]
[[package]]
name = "c"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "g"
version = "1.0"
source = { git = "https://host.example/g?subdirectory=d&rev=main#abc" }
[[package]]
name = "u"
source = { url = "https://host.example/u-1-py3-none-any.whl" }
[[package]]
name = "unused"
version = "1.0"
source = { registry = "https://never.example" }
"""


def test_a_workspaces_lock_counts_for_its_members_from_wherever_packages_come(
    write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("pyproject.toml", "[tool.uv.workspace]\nmembers = ['packages/*']\n")
    write("uv.lock", LOCKED)
    member = write("packages/app/pyproject.toml", "[project]\nname = 'app'\ndependencies = ['a']\n").parent
    found = gather("auto", member)
    assert found.lines == (
        "a==1.0+local",
        "b==1.0",
        'c==1.0 ; os_name == "nt" or python_version >= "0"',
        "g @ git+https://host.example/g@abc#subdirectory=d",
        "u @ https://host.example/u-1-py3-none-any.whl",
    )
    assert found.options == ("--extra-index-url https://torch.example/whl",)
    other = write("elsewhere/pyproject.toml", "[project]\nname = 'other'\ndependencies = ['z']\n").parent
    assert gather("auto", other).lines == ("z",), "the lock does not know it"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 2\n", "its version is 2"),
        ("version = 1\n", "does not contain this project"),
        ("version =\n", "not TOML"),
        (LOCKED.replace("packages/app", ".").replace("//torch", "//u:S3CRET@torch"), "credentials"),
        (LOCKED.replace("packages/app", ".").replace('version = "1.0+local"', ""), "neither a version"),
    ],
)
def test_a_lock_that_cannot_be_used_says_why(write, text: str, said: str) -> None:
    write("uv.lock", text)
    assert said in " ".join(refused())
    assert "S3CRET" not in " ".join(refused())


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
        [[packages]]
        name = "x"
        vcs = { type = "git", url = "https://host.example/x", commit-id = "abc" }
        [[packages]]
        name = "y"
        archive = { url = "https://host.example/y.zip" }
        [[packages]]
        name = "common"
        directory = { path = "common" }
        """)  # fmt: skip
    found = read("pylock.toml")
    assert found.lines == (
        'numpy==2.0 ; python_version >= "3.10"',
        "x @ git+https://host.example/x@abc",
        "y @ https://host.example/y.zip",
    )
    assert found.options == ("--index-url https://mine.example/simple",)
    assert found.folders == ("common",)
    assert read().source == ""
    write(
        "pylock.toml",
        "lock-version = '1.0'\n[[packages]]\nname='x'\nversion='1'\nmarker=\"'dev' in dependency_groups\"\n",
    )
    assert "depends on extras or groups" in refused("pylock.toml")[0]


ATOMS = ["python_version < '3.11'", "python_version >= '3.11'", "os_name == 'nt'", "sys_platform == 'linux'", ""]
EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(ATOMS)), max_size=14)
WORLDS = [
    {"python_version": version, "os_name": name, "sys_platform": platform}
    for version, name, platform in product(("3.10", "3.12"), ("nt", "posix"), ("linux", "win32"))
]


@given(EDGES)
def test_a_package_is_wanted_exactly_where_some_way_leads_to_it(edges: list[tuple[int, int, str]]) -> None:
    ways = lock.marker_paths([0], lambda node: [(end, marker) for start, end, marker in edges if start == node])
    texts = {node: lock.joined_markers(found) for node, found in ways.items()}
    for world in WORLDS:
        reached, waiting = {0}, [0]
        while waiting:
            here = waiting.pop()
            for start, end, marker in edges:
                if start == here and end not in reached and (not marker or Marker(marker).evaluate(world)):
                    reached.add(end)
                    waiting.append(end)
        wanted = {node for node, text in texts.items() if not text or Marker(text).evaluate(world)}
        assert wanted == reached
