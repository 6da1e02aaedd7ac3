"""Virtual environments of real uv, from tiny distributions in a folder: no network."""

from __future__ import annotations

import fcntl
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import LIMIT_S, REPO, until

from sdk.clock import SystemClock
from sdk.errors import InputError
from sdk.process import spawn, uv
from sdk.process import venv as envs
from sdk.storage.cache import cache_folder
from sdk.storage.cache import environments as environments_folder

pytestmark = pytest.mark.process

# A source distribution with a build that says that it began, and waits until it may end.
BACKEND = """
import os, shutil, time
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    place = Path(os.environ["SLOW_FOLDER"])
    (place / f"began-{os.getpid()}").touch()
    until = time.monotonic() + 60
    while not (place / "go").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return Path(shutil.copy(place / "slow-1.0-py3-none-any.whl", folder)).name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'

# Another run of podlift that wants the same environment: prints the interpreter.
ANOTHER_RUN = """
import json, os, sys
from pathlib import Path
from sdk.process import venv as environments
from sdk.clock import SystemClock
cache, log, requirements, options = sys.argv[1:]
wanted = environments.EnvironmentSpec(
    python=sys.executable, requirements=tuple(json.loads(requirements)), options=tuple(json.loads(options)))
with environments.using(
    wanted, cache=Path(cache), log=Path(log), environ=os.environ, clock=SystemClock(), stop=lambda: False) as python:
    print(python)
"""


def wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), scripts: str = "") -> None:
    info, required = f"{name}-{version}.dist-info", "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": f"import sys\nVERSION = {version!r}\ndef main(): print(sys.prefix)\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{scripts}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def slow_source(folder: Path) -> None:
    metadata = "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n"
    wheel(folder.parent, "slow", "1.0")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "slow-1.0.tar.gz", "w:gz") as archive:
        for path, text in {"PKG-INFO": metadata, "pyproject.toml": PYPROJECT, "backend.py": BACKEND}.items():
            info = tarfile.TarInfo(f"slow-1.0/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))


def clean_environ(home: Path, **more: str) -> dict[str, str]:
    """Nothing of this machine's configuration of pip and uv."""
    base = {"PATH": os.environ["PATH"], "HOME": str(home), "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
    return {**base, **more}


class Place:
    """A cache, a folder of distributions, and a log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.log, self.dists = folder, folder / "cache", folder / "log", folder / "dists"

    def wanted(self, *requirements: str) -> envs.EnvironmentSpec:
        options = ("--no-index", f"--find-links {self.dists}") if requirements else ()
        return envs.EnvironmentSpec(python=sys.executable, requirements=requirements, options=options)

    def using(self, spec: envs.EnvironmentSpec, environ: dict[str, str], stop: Callable[[], bool] = lambda: False):
        return envs.using(spec, cache=self.cache, log=self.log, environ=environ, clock=SystemClock(), stop=stop)

    def ensure(self, *requirements: str, stop: Callable[[], bool] = lambda: False, **environ: str) -> Path:
        env = clean_environ(self.folder, SLOW_FOLDER=str(self.folder), **environ)
        return self.ensure_spec(self.wanted(*requirements), env, stop)

    def ensure_spec(self, *about) -> Path:
        with self.using(*about) as python:
            return python

    def in_another_process(self, log: str, *requirements: str) -> subprocess.Popen[str]:
        env = clean_environ(self.folder, SLOW_FOLDER=str(self.folder), PYTHONPATH=str(REPO))
        lines = [json.dumps(requirements), json.dumps(self.wanted(*requirements).options)]
        command = [sys.executable, "-c", ANOTHER_RUN, str(self.cache), str(self.folder / log), *lines]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def began(self) -> list[int]:
        return [int(path.name.partition("-")[2]) for path in self.folder.glob("began-*")]

    def left(self) -> list[str]:
        return sorted(path.name for home in environments_folder(self.cache).iterdir() for path in home.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def executable(path: Path, text: str) -> str:
    put(path, text).chmod(0o755)
    return str(path)


def say(python: Path | str, code: str) -> str:
    done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() + done.stderr.strip().rpartition("\n")[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Path]:
    """One environment for all tests that only look at it, built with variables that point elsewhere."""
    place = Place(tmp_path_factory.mktemp("built"))
    wheel(place.dists, "tiny_top", "1.5", requires=("tiny-base>=1",), scripts="tiny = tiny_top:main")
    wheel(place.dists, "tiny_base", "1.0")
    wheel(place.dists, "tiny_base", "2.0")
    wheel(place.dists, "unwanted", "1.0")
    (place.folder / "more.txt").write_text("unwanted\n")
    astray = {"PIP_TARGET": f"{place.folder}/astray", "UV_LINK_MODE": "hardlink", "PYTHONPATH": str(REPO)}
    astray |= dict.fromkeys(("PIP_DRY_RUN", "PIP_USER", "UV_SYSTEM_PYTHON"), "1")
    astray |= dict.fromkeys(("PIP_REQUIREMENT", "UV_CONSTRAINT"), f"{place.folder}/more.txt")
    astray |= dict.fromkeys(("PYTHONHOME", "VIRTUAL_ENV"), str(place.folder))
    return place, place.ensure("tiny.TOP==1.*", "tiny_base<2", "absent; python_version < '3'", **astray)


@pytest.mark.full
def test_an_environment_holds_its_requirements_in_their_versions_and_none_of_ours(built) -> None:
    _, python = built
    assert say(python, "import tiny_top, tiny_base; print(tiny_top.VERSION, tiny_base.VERSION)") == "1.5 1.0"
    assert say(python, "import pydantic") == "ModuleNotFoundError: No module named 'pydantic'"
    assert say(python, "import unwanted") == "ModuleNotFoundError: No module named 'unwanted'"


def test_settings_that_would_change_the_packages_are_not_passed_on_and_are_logged(built) -> None:
    place, _ = built
    assert not (place.folder / "astray").exists()
    said = place.log.read_text()
    (line,) = [line for line in said.splitlines() if line.startswith("podlift: not passed to uv")]
    names = line.rpartition(": ")[2].split(", ")
    assert sorted(names) == ["UV_CONSTRAINT", "UV_LINK_MODE", "UV_SYSTEM_PYTHON", "dry-run", "requirement", "target"]


def test_the_second_time_it_is_there_already_whatever_the_order_of_the_lines(built) -> None:
    place, python = built
    before = place.log.read_bytes()
    assert place.ensure("absent; python_version < '3'", "tiny_base<2", "tiny.TOP==1.*") == python
    assert place.log.read_bytes() == before, "uv was not started"


def test_scripts_of_an_environment_start_and_its_files_are_not_shared_with_uvs_cache(built) -> None:
    _, python = built
    done = subprocess.run([str(python.parent / "tiny")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(python.parent.parent)
    (module,) = python.parents[1].glob("lib/*/site-packages/tiny_top.py")
    assert module.stat().st_nlink == 1


def test_another_line_is_another_environment() -> None:
    def key(*requirements: str, options: tuple[str, ...] = ("--no-index", "--prefer-binary", "--pre")) -> str:
        return envs.key(envs.EnvironmentSpec(python=sys.executable, requirements=requirements, options=options))

    assert key("a==1", "b==2") == key("b==2", "a==1") != key("a==1", "b==3")
    for options in (("--no-index", "--pre"), ("--pre", "--no-index", "--prefer-binary")):
        assert key("a==1", "b==2", options=options) != key("a==1", "b==2")


def test_no_requirements_make_a_bare_environment(place: Place, monkeypatch) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(envs.posix, "sync_disk", lambda path: synced.append(place.left()))
    python = place.ensure()
    assert len(synced) == 1
    assert "ready.json" not in synced[0], "the environment is on the disk before its marker"
    assert envs.installed(python) == {}
    assert say(python, "import pip") == "ModuleNotFoundError: No module named 'pip'"


def test_through_the_facade_a_bare_environment_finds_sdk_and_nothing_else_of_podlift(place: Place) -> None:
    home = envs.facade(place.folder / "facade")
    assert sorted(os.listdir(home)) == ["sdk"]
    assert envs.facade(place.folder / "facade") == home, "it may be made twice"
    python = place.ensure()
    start = f"import sys; sys.path.append({home!r}); import sdk; "
    context = "ctx = sdk.context(); ctx.report({'loss': 1.0}); print(ctx.task, ctx.is_chief)"
    assert say(python, start + context) == "chief-0 True"
    assert say(python, start + "import sdk.runtime.bootstrap as b; print(b.__file__)").startswith(home)
    assert say(python, start + "import pydantic") == "ModuleNotFoundError: No module named 'pydantic'"


@pytest.mark.full
def test_a_run_that_comes_while_uv_works_waits_and_builds_nothing(place: Place) -> None:
    slow_source(place.dists)
    runs = [place.in_another_process(f"log-{i}", "slow==1.0") for i in range(2)]
    until(place.began)
    logs = [place.folder / f"log-{i}" for i in range(2)]
    until(lambda: any(log.exists() and "waiting for another run" in log.read_text() for log in logs))
    (place.folder / "go").touch()
    said = [run.communicate(timeout=LIMIT_S)[0].strip() for run in runs]
    assert said[0] == said[1]
    assert [run.returncode for run in runs] == [0, 0]
    assert len(place.began()) == 1
    assert envs.installed(Path(said[0]))["slow"] == "1.0"


@pytest.mark.full
def test_the_environment_of_a_killed_builder_is_built_again_and_its_uv_dies_with_it(place: Place) -> None:
    slow_source(place.dists)
    victim = place.in_another_process("log-0", "slow==1.0")
    until(place.began)
    [half] = [path for home in environments_folder(place.cache).iterdir() for path in home.iterdir() if path.is_dir()]
    started = [*pids_with(str(half)), *place.began()]
    assert len(started) > 2, "uv, and the build that it has started"
    victim.kill()
    victim.communicate()
    if sys.platform.startswith("linux"):
        until(lambda: not any(spawn.identity(pid) for pid in started))
    (place.folder / "go").touch()
    python = place.ensure("slow==1.0")
    assert envs.installed(python)["slow"] == "1.0"
    assert python.parent.parent != half
    assert not half.exists()


def pids_with(text: str) -> list[int]:
    """Processes with these words in their command line."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if text in line]


@pytest.mark.full
def test_stop_while_building_kills_uv_and_its_children(place: Place) -> None:
    slow_source(place.dists)
    with pytest.raises(uv.EnvironmentStoppedError):
        place.ensure("slow==1.0", stop=lambda: bool(place.began()))
    until(lambda: not any(spawn.identity(pid) for pid in place.began()))
    assert place.began()
    assert pids_with(str(place.cache)) == []
    assert place.left() == ["lock", "used"]


def test_stop_while_waiting_for_another_builder_ends_the_wait(place: Place) -> None:
    home = Path(place.ensure()).parent.parent.parent
    with (home / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(uv.EnvironmentStoppedError):
            place.ensure(stop=lambda: "waiting" in place.log.read_text())


def test_a_process_that_uv_leaves_behind_does_not_hold_the_build_and_is_ended(place, monkeypatch) -> None:
    program = executable(place.folder / "uv", "#!/bin/sh\nsleep 1000 &\necho $! > pid\necho the end; exit 3\n")
    pids, discard = list[int](), envs.own_folders.discard
    monkeypatch.setattr(uv, "program", lambda: program)

    def look(home: str, name: str) -> None:
        pids.append(int((Path(home) / name / "pid").read_text()))
        discard(home, name)

    monkeypatch.setattr(envs.own_folders, "discard", look)
    with pytest.raises(uv.EnvironmentBuildError, match=r"exit code 3\.\n    the end"):
        place.ensure()
    until(lambda: not any(spawn.identity(pid) for pid in pids))
    assert len(pids) == 1


def test_a_failed_requirement_is_named_in_uvs_words_and_leaves_no_ready_environment(place: Place) -> None:
    wheel(place.dists, "tiny_top", "1.5", requires=("nowhere-to-be-found>3",))
    wheel(place.dists, "fine", "1.0")
    with pytest.raises(uv.EnvironmentBuildError) as caught:
        place.ensure("fine", "tiny-top==1.5")
    said = str(caught.value)
    for part in ("nowhere-to-be-found was not found", "tiny-top", "Next: change the requirements", str(place.log)):
        assert part in said
    assert not caught.value.transient
    assert place.left() == ["lock", "used"]


def test_one_line_with_a_hash_makes_hashes_a_condition_for_all(place: Place) -> None:
    wheel(place.dists, "fine", "1.0")
    wheel(place.dists, "other", "1.0")
    (file,) = place.dists.glob("fine-*")
    right = f"fine==1.0 --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    for lines in ((right, "other==1.0"), (f"fine==1.0 --hash=sha256:{'0' * 64}",)):
        with pytest.raises(uv.EnvironmentBuildError, match="hash"):
            place.ensure(*lines)
    assert envs.installed(place.ensure(right)) == {"fine": "1.0"}


def index(folder: Path, *dists: tuple[str, str]) -> str:
    """A package index of files: its URL."""
    for name, version in dists:
        wheel(folder / name, name, version)
        links = "".join(f'<a href="{path.name}">{path.name}</a>' for path in (folder / name).glob("*.whl"))
        (folder / name / "index.html").write_text(links)
    return folder.as_uri()


def test_places_of_pips_configuration_are_searched_and_the_best_version_of_all_wins(place: Place) -> None:
    machine = index(place.folder / "machine", ("tiny", "1.0"), ("other", "1.0"))
    more = index(place.folder / "more", ("tiny", "2.0"))
    users = f"[global]\nindex-url = file:///nowhere\n[install]\nextra-index-url =\n    {more}\n"
    put(place.folder / ".config/pip/pip.conf", users)
    env = {"PATH": os.environ["PATH"], "HOME": str(place.folder), "UV_NO_CONFIG": "1", "PIP_INDEX_URL": machine}
    wanted = envs.EnvironmentSpec(python=sys.executable, requirements=("tiny", "other"))
    assert envs.installed(place.ensure_spec(wanted, env)) == {"tiny": "2.0", "other": "1.0"}


def test_the_users_uv_configuration_counts_and_a_projects_above_the_cache_does_not(place: Place) -> None:
    for version in ("1.0", "2.0"):
        wheel(place.dists, "tiny", version)
    put(place.folder / "pyproject.toml", '[tool.uv]\noverride-dependencies = ["tiny==1.0"]\n')
    put(place.folder / "cache/uv.toml", "a mistake\n")
    put(place.folder / ".config/uv/uv.toml", f'[pip]\nno-index = true\nfind-links = ["{place.dists}"]\n')
    env = {"PATH": os.environ["PATH"], "HOME": str(place.folder), "PIP_CONFIG_FILE": os.devnull}
    wanted = envs.EnvironmentSpec(python=sys.executable, requirements=("tiny",))
    assert envs.installed(place.ensure_spec(wanted, env)) == {"tiny": "2.0"}


@pytest.mark.parametrize(
    ("environ", "options", "arguments", "variables", "unknown"),
    [
        ({"PIP_NO_INDEX": "0", "PIP_PRE": "true"}, (), ["--prerelease=allow"], {}, []),
        ({"PIP_INDEX_URL": "https://me:secret@a.b/simple", "PIP_FIND_LINKS": "/one /two"},
         ("--find-links '/with space'", "--no-index"), ["--no-index"],
         {"UV_DEFAULT_INDEX": "https://me:secret@a.b/simple", "UV_FIND_LINKS": "/one,/two,/with space"}, []),
        ({"PIP_INDEX_URL": "https://a.b", "PIP_EXTRA_INDEX_URL": "https://c.d"},
         ("--index-url https://x.y", "--extra-index-url https://z", "--trusted-host z", "--only-binary a,b"),
         ["--allow-insecure-host=z", "--only-binary=a", "--only-binary=b"],
         {"UV_DEFAULT_INDEX": "https://x.y", "UV_EXTRA_INDEX_URL": "https://c.d https://z"}, []),
        ({"PIP_CERT": "/ca.pem", "PIP_PROXY": "http://p:1", "PIP_DEFAULT_TIMEOUT": "9", "PIP_NO_INPUT": "1"},
         ("--prefer-binary",), [],
         {"SSL_CERT_FILE": "/ca.pem", "HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://p:1", "UV_HTTP_TIMEOUT": "9"},
         ["prefer-binary"]),
        (dict.fromkeys(("PIP_NO_INDEX", "PIP_REQUIRE_HASHES", "PIP_PROXY", "UV_FIND_LINKS"), ""), (), [], {}, []),
        ({"UV_FIND_LINKS": "/a,/b", "UV_EXTRA_INDEX_URL": "https://a https://b", "PIP_EXTRA_INDEX_URL": "https://c"},
         ("--find-links /c",), [],
         {"UV_FIND_LINKS": "/a,/b,/c", "UV_EXTRA_INDEX_URL": "https://a https://b https://c"}, []),
        ({"PIP_TIMEOUT": "soon"}, (), [], {"UV_HTTP_TIMEOUT": "soon"}, []),
        ({"PIP_TIMEOUT": "15.5"}, (), [], {"UV_HTTP_TIMEOUT": "16"}, []),
        ({"PIP_FIND_LINKS": "/a,b https://c/d,e"}, ("--extra-index-url '/f g'",), [],
         {"UV_FIND_LINKS": "file:///a%2Cb,https://c/d%2Ce", "UV_EXTRA_INDEX_URL": "file:///f%20g"}, []),
    ],
)  # fmt: skip
def test_pips_settings_become_uvs_and_unsupported_ones_are_named(
    environ: dict, options: tuple, arguments: list, variables: dict, unknown: list
) -> None:
    environ = {**environ, "PIP_CONFIG_FILE": os.devnull}
    assert uv.translated(environ, options) == (arguments, variables, unknown)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("missing.conf", {"a": "user", "b": "machine", "c": "user"}),
        ("chosen.conf", {"a": "chosen", "b": "machine", "d": "machine"}),
    ],
)
def test_pip_configuration_counts_in_pips_order_and_a_chosen_file_replaces_the_users(
    tmp_path: Path, chosen: str, expected: dict[str, str]
) -> None:
    for path, text in {
        "machine/pip/pip.conf": "[global]\na = machine\nb = machine\n[install]\nd = machine\n",
        ".config/pip/pip.conf": "[global]\na = user\nc = user\n[install]\nb =\nd =\n",
        "chosen.conf": "[global]\na = chosen\n",
    }.items():
        put(tmp_path / path, text)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "machine")}
    settings = uv.pip_settings({**environ, "PIP_CONFIG_FILE": str(tmp_path / chosen)})
    assert {name: settings[name] for name in "abcd" if name in settings} == expected


@pytest.mark.parametrize("folder", [".config", "Library/Application Support"])
def test_on_macos_pips_configuration_lies_in_application_support_or_as_elsewhere(tmp_path, folder, monkeypatch) -> None:
    for config in (".config", folder):
        put(tmp_path / config / "pip/pip.conf", f"[global]\nproxy = {config}\n")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert uv.pip_settings({"HOME": str(tmp_path)})["proxy"] == folder


def test_a_configuration_of_pip_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = x\n")
    with pytest.raises(InputError, match=r"pip's configuration cannot be read: .*pip\.conf"):
        uv.pip_settings({"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)})


def test_a_uv_that_makes_no_environment_ends_the_build(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv.UvRunner, "_run", lambda *_: None)
    with pytest.raises(uv.EnvironmentBuildError, match="uv succeeded, but made no environment"):
        place.ensure()


def test_a_missing_uv_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    with pytest.raises(InputError, match=r"needs uv.* -m pip install"):
        uv.program()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("#!/nowhere\n", "uv cannot be run: .*uv'"),
        ("#!/bin/sh\necho error: unexpected argument found; exit 2\n", "unexpected"),
    ],
)
def test_a_uv_that_cannot_be_run_or_is_too_old_is_to_be_installed_anew(place, program, said, monkeypatch) -> None:
    program = executable(place.folder / "uv", program)
    monkeypatch.setattr(uv, "program", lambda: program)
    said = rf"(?s){said}.*Next: .* -m pip install --force-reinstall uv"
    with pytest.raises(uv.EnvironmentBuildError, match=said) as caught:
        place.ensure()
    assert "Traceback" not in str(caught.value)


def test_a_cache_of_uv_that_cannot_be_written_is_named_with_its_variable(place: Place) -> None:
    (place.folder / "file").touch()
    with pytest.raises(uv.EnvironmentBuildError, match="Next: set UV_CACHE_DIR to a folder"):
        place.ensure(UV_CACHE_DIR=str(place.folder / "file" / "uv"))


class Index(http.server.BaseHTTPRequestHandler):
    """An index with one distribution; each transfer of its folder ends too early."""

    protocol_version = "HTTP/1.1"
    stall = threading.Event()

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        if kind == "busy":
            self.send_error(429)
        elif self.path.endswith(".whl"):
            self._begin(10_000)
            if kind == "stalled":
                self.stall.wait(LIMIT_S)
        elif self.path.endswith(".metadata"):
            self._send(b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        elif kind == "page":
            self._begin(10_000)
        else:
            self._send(b'<a href="tiny-1.0-py3-none-any.whl" data-core-metadata="true">tiny-1.0-py3-none-any.whl</a>')

    def _send(self, body: bytes) -> None:
        self._begin(len(body))
        self.wfile.write(body)

    def _begin(self, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.close_connection = True


@pytest.fixture
def failing_index() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Index.stall.clear()
        yield f"http://127.0.0.1:{server.server_port}"
        Index.stall.set()
        server.shutdown()


@pytest.mark.parametrize("kind", ["busy", "page", "wheel", pytest.param("stalled", marks=pytest.mark.full)])
def test_after_a_network_that_fails_in_mid_download_a_retry_may_succeed(place, kind: str, failing_index: str) -> None:
    env = clean_environ(place.folder, UV_HTTP_RETRIES="0", UV_HTTP_TIMEOUT="1", NO_PROXY="*")
    options = (f"--index-url {failing_index}/{kind}",)
    wanted = envs.EnvironmentSpec(python=sys.executable, requirements=("tiny",), options=options)
    with pytest.raises(uv.EnvironmentBuildError, match="Next: check the network") as caught:
        place.ensure_spec(wanted, env)
    assert caught.value.transient


@pytest.mark.parametrize(
    "environ",
    [
        {
            "PIP_INDEX_URL": "http://user:S3CRET#x@127.0.0.1:9/simple",
            "PIP_EXTRA_INDEX_URL": "http://u:S3/S3CRET@127.0.0.1:9",
        },
        {"PIP_EXTRA_INDEX_URL": "https://u:S3CRET#@127.0.0.1/x"},
        {"UV_FIND_LINKS": "http://user:S3CRET/S3CRET@127.0.0.1:9/"},
        {"PIP_INDEX_URL": "http://127.0.0.1:9/simple?token=S3CRET"},
        {"UV_DEFAULT_INDEX": "http://user:S3CRET@127.0.0.1:port/simple"},
        {"PIP_INDEX_URL": "user:S3CRET@127.0.0.1:9/simple"},
    ],
)
def test_no_secret_of_an_index_is_in_the_log_which_is_uploaded_with_the_run(place, environ: dict[str, str]) -> None:
    env = clean_environ(place.folder, UV_HTTP_RETRIES="0", **environ)
    wanted = envs.EnvironmentSpec(python=sys.executable, requirements=("tiny",))
    with pytest.raises(uv.EnvironmentBuildError) as caught:
        place.ensure_spec(wanted, env)
    said = place.log.read_text()
    assert "****" in said
    assert "S3CRET" not in said + str(caught.value)


@pytest.mark.parametrize("damage", ["marker", "interpreter", "foreign", "inventory", "size", "bytes"])
def test_an_environment_that_is_damaged_is_built_anew(place: Place, damage: str) -> None:
    python = place.ensure()
    home = python.parent.parent.parent
    if damage == "marker":
        (home / "ready.json").write_text("{")
    elif damage == "foreign":
        (home / "ready.json").write_text('{"build": 1, "installed": []}')
    elif damage == "inventory":
        (home / "files.json").write_text("{}")
    elif damage in ("size", "bytes"):
        # A file that is shorter is noticed at once, a flipped bit with the next day's look at every byte.
        text = (python.parent / "activate").read_bytes()
        damaged = text[:-1] if damage == "size" else bytes([text[0] ^ 1]) + text[1:]
        (python.parent / "activate").write_bytes(damaged)
        os.utime(home / "checked", (0, time.time() - (2 * 86400 if damage == "bytes" else 0)))
    else:
        python.unlink()
    again = place.ensure()
    assert say(again, "print(1)") == "1"
    assert again != python
    assert place.ensure() == again
    assert ("is built again: " in place.log.read_text()) == (damage in ("inventory", "size", "bytes"))
    assert len([path for path in home.iterdir() if path.is_dir()]) == 1


def test_only_environments_without_requests_and_users_are_named_as_unused(place: Place) -> None:
    now = time.time()
    with place.using(place.wanted(), clean_environ(place.folder)) as python:
        home = python.parent.parent.parent
        assert envs.unused(place.cache, unused_for_s=60, now=now + 3600) == [], "a run uses it"
        assert not envs.remove(home)
        assert python.exists()
    assert envs.unused(place.cache, unused_for_s=60, now=now + 30) == []
    assert envs.unused(place.cache, unused_for_s=60, now=now + 3600) == [home]
    assert envs.remove(home)
    assert not home.exists()
    assert envs.unused(place.cache, unused_for_s=60, now=now + 3600) == []
    assert place.ensure().exists(), "it can be made again"


@pytest.mark.parametrize("left", [[], ["lock"], ["ready.json", "half/bin"]], ids=["nothing", "a lock", "no lock"])
def test_a_folder_of_a_run_that_was_killed_before_its_first_use_is_unused_too(place: Place, left: list[str]) -> None:
    home = environments_folder(place.cache) / "abc"
    home.mkdir(parents=True)
    for name in left:
        put(home / name, "")
    assert envs.unused(place.cache, unused_for_s=60, now=time.time()) == []
    assert envs.unused(place.cache, unused_for_s=60, now=time.time() + 3600) == [home]
    assert envs.remove(home)
    assert not home.exists()


def test_a_link_among_the_environments_is_none(place: Place) -> None:
    (foreign := place.folder / "elsewhere").mkdir()
    environments_folder(place.cache).mkdir(parents=True)
    (environments_folder(place.cache) / "abc").symlink_to(foreign)
    assert envs.unused(place.cache, unused_for_s=60, now=time.time() + 3600) == []


def test_two_runs_that_waited_while_their_environment_was_removed_build_one_new_one(place: Place) -> None:
    home = place.ensure().parent.parent.parent
    with (home / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = [place.in_another_process(f"log-{i}") for i in range(2)]
        logs = [place.folder / f"log-{i}" for i in range(2)]
        until(lambda: all(log.exists() and "waiting" in log.read_text() for log in logs))
        (home / "ready.json").unlink()
        (home / "lock").unlink()
    pythons = {Path(run.communicate(timeout=LIMIT_S)[0].strip()) for run in waiting}
    assert [python.exists() for python in pythons] == [True]
    assert [run.returncode for run in waiting] == [0, 0]
    assert len([path for path in home.iterdir() if path.is_dir()]) == 1
    assert (home / "lock").exists()


CONFLICT = """\
Using Python 3.11.7 environment at: env
error: No solution found when resolving dependencies
  cause: Because you require a==1 and b==2, we can conclude that your requirements are unsatisfiable.
"""
UNREACHABLE = """\
error: Request failed after 3 retries in 10.4s
  cause: Failed to fetch: http://me:secret@127.0.0.1:9/simple/nope/
  cause: error sending request for url (http://127.0.0.1:9/simple/nope/)
"""
UNTRUSTED = f"{UNREACHABLE}  cause: client error (Connect)\n  cause: invalid peer certificate: UnknownIssuer\n"
CUT = "error: No solution found\n  cause: invalid format\n\nhint: invalid:\n  Failed to read from zip file\n"
HASH = "error: Failed to download `a==1`\n  cause: Hash mismatch for `a==1`\n"
CACHE = """\
error: Could not acquire lock
  cause: failed to open file `/home/me/.cache/uv/.lock`: Permission denied (os error 13)
"""
OLDER = "Resolved\n  \u00d7 No solution found when resolving dependencies:\n  ╰─▶ Because a was not found\n"
LONG = "".join(["error: Failed to build `a==1`\n", *(f"  {line}\n" for line in range(100)), "  no compiler\n"])


@pytest.mark.parametrize(
    ("output", "first", "last", "advice", "transient"),
    [
        (CONFLICT, "error: No solution", "are unsatisfiable.", "change the requirements", False),
        (OLDER, "\u00d7 No solution", "Because a was not found", "change the requirements", False),
        (UNREACHABLE, "error: Request failed", "error sending request", "check the network", True),
        (UNTRUSTED, "error: Request failed", "UnknownIssuer", "set SSL_CERT_FILE, or pip's setting cert", False),
        (CUT, "error: No solution", "Failed to read from zip file", "try again: the download", True),
        (HASH, "error: Failed to download", "Hash mismatch", "find out why the hash of the file", False),
        (CACHE, "error: Could not", "Permission denied", "set UV_CACHE_DIR", False),
        (LONG, "error: Failed to build", "no compiler", "change the requirements", False),
        ("error: write failed: No space left on device", "error: write", "on device", "free disk space", True),
        ("Killed", "Killed", "Killed", "change the requirements", False),
    ],
)
def test_a_failure_of_uv_is_its_error_and_the_next_step(output, first, last, advice, transient, tmp_path) -> None:
    error = uv.failure(output, 1, log=tmp_path / "log")
    shown = [line.strip() for line in str(error).splitlines()[1:-1]]
    assert shown[0].startswith(first)
    assert last in shown[-1]
    assert len(shown) <= 11
    assert "secret" not in str(error)
    assert advice in str(error).partition("Next: ")[2]
    assert str(tmp_path / "log") in str(error)
    assert error.transient is transient


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("exit 3", "exit code 3"),
        ("echo hello", "does not behave like Python"),
        ("echo no such thing >&2; exit 1", "no such thing"),
        ("echo '[[3, 7], 1, 2, 3, 4]'", "needs Python 3.10 or later. Received: .* which is 3.7"),
        (None, "No such file"),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_named(tmp_path: Path, program: str | None, said: str) -> None:
    python = tmp_path / "python"
    if program is not None:
        executable(python, f"#!/bin/sh\n{program}\n")
    with pytest.raises(InputError, match=said) as caught:
        envs.key(envs.EnvironmentSpec(python=str(python)))
    assert repr(str(python)) in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/podlift"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/podlift"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/podlift"),
        ({}, f"{Path.home()}/.cache/podlift"),
    ],
)
def test_the_cache_lies_where_the_desktop_standard_says(environ: dict[str, str], expected: str) -> None:
    assert cache_folder(environ) == Path(expected)
