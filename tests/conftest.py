"""Fixtures of all tests: an environment without settings, a private root and project folder."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import support
from hypothesis import HealthCheck, settings
from packaging.requirements import Requirement

import sdk
from sdk.packaging.project import parse_toml

if TYPE_CHECKING:
    from sdk.testing.gcs import GcsServer

pytest_plugins = ["costs", "tiers", "strategy_page", "warm_starts"]

# Without bytecode, each process that a test starts compiles podlift again: half of the time of a start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_NUMBERS = itertools.count()
_GROUPS = Path("/sys/fs/cgroup/memory")

# A test says whether something is right; how long that takes is the machine's matter.
settings.register_profile("podlift", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("podlift")
# A shell starts background jobs with SIGINT ignored; these tests interrupt processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pictures", action="store_true", help="write the pictures in docs/images (tests/ui/test_browser.py)"
    )


def pytest_configure() -> None:
    """Forget the user's settings, and stop at once if a dependency is missing."""
    # Fixtures of modules run before `_no_settings`. pytest-xdist gives each worker another width and path.
    for name in [name for name in os.environ if _is_setting(name) or name in ("COLUMNS", "PYTHONPATH")]:
        del os.environ[name]
    # A supervisor without a dependency fails in ways that do not name it.
    wanted = parse_toml(Path(__file__).parents[1].joinpath("pyproject.toml").read_bytes(), "pyproject.toml")["project"]
    lines = [Requirement(line) for line in (*wanted["dependencies"], *wanted["optional-dependencies"]["dev"][1:])]
    lines = [line for line in lines if line.marker is None or line.marker.evaluate()]
    missing = [line.name for line in lines if not list(metadata.distributions(name=line.name))]
    if missing:
        pytest.exit(
            f"Not installed: {', '.join(missing)}. Next: .venv/bin/pip install -e '.[tf,jobs,dev]'.", returncode=2
        )


def _is_setting(name: str) -> bool:
    return name.startswith("PODLIFT_") or name in ("TF_CONFIG", "CLUSTER_SPEC")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking through what collection makes, which lives until the end: 3 CPU seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Tests are short, too: the usual 700 objects between two looks cost a tenth of their CPU seconds.
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


@pytest.fixture(autouse=True)
def _no_settings(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in filter(_is_setting, list(os.environ)):
        monkeypatch.delenv(name)
    if "tmp_path" in request.fixturenames:
        home = request.getfixturevalue("tmp_path")
    else:
        # Most tests need no folder, and pytest looks through all that there are to number a further one.
        home = tmp_path_factory.getbasetemp() / f"none-{next(_NUMBERS)}"
    monkeypatch.setenv("PODLIFT_ROOT", str(home / "root"))
    # Whoever tests restarts asks for them.
    monkeypatch.setenv("PODLIFT_RETRY_INFRASTRUCTURE", "0")
    monkeypatch.setenv("PODLIFT_RETRY_PREEMPTIONS", "0")


@pytest.fixture(autouse=True)
def _listeners_end_with_the_test() -> Iterator[None]:
    yield
    support.listeners.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of runs, which nobody has made yet."""
    return tmp_path / "root"


@pytest.fixture
def mine(podlift_gcs: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The bucket "mine" of an emulator that is known to all that is started here; copies of it are in the folder `here`."""
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_gcs.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    return podlift_gcs.client().create_bucket("mine")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write files into a project folder, which is the current folder: `write("train.py", "print(1)")`."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    def writer(path: str, text: str = "") -> Path:
        target = project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text))
        return target

    return writer


@pytest.fixture
def with_memory() -> Iterator[Callable[[str, str], str]]:
    """Run a Python program in a control group with that much memory, and return its output: `with_memory("300M", text)`."""
    if not os.access(_GROUPS, os.W_OK):
        pytest.skip("control groups cannot be made here")
    group = _GROUPS / f"podlift-test-{os.getpid()}"
    group.mkdir()

    def run(limit: str, program: str) -> str:
        (group / "memory.limit_in_bytes").write_text(limit)
        enter = f"import os; open('{group}/cgroup.procs', 'w').write(str(os.getpid()))"
        env = {**os.environ, "PYTHONPATH": str(Path(sdk.__file__).parent.parent)}
        command = [sys.executable, "-c", f"{enter}\n{program}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout

    yield run
    until = time.monotonic() + 30
    while (group / "cgroup.procs").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    group.rmdir()
