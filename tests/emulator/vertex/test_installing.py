"""A job installs packages for itself: the environment of the developer who runs the emulator stays as it is."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import site
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import created, reached, texts
from wheels import module, wheel

from sdk.testing.vertex import Cloud

pytestmark = pytest.mark.process

PACKAGES = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
# Where the system grants no namespaces, as on many machines for ordinary users.
DENIED = """
import os
if os.environ.get("TEST_DENIED"):
    from sdk.emulator.vertex.containers import client
    client._probe_result["refused"] = {"root": "denied", "pids": "denied"}
"""
# Word by word the rights of a program on Vertex AI on its own disk.
PROGRAM = """
set -e
pip install -q --upgrade pip
echo pip $(pip --version | cut -d ' ' -f 2)
pip3 install -q --user tiny
tiny user
python3 -c 'import sys, subprocess; subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "-U", "seen"])'
python3 -c 'import seen, importlib.metadata as m; print("seen", seen.VERSION, m.version("seen"))'
seen script
pip uninstall -q -y tiny seen
! python3 -c 'import tiny' 2> /dev/null
python3 -c 'import seen; print("seen", seen.VERSION)'
if touch "$SITE/touched"; then rm "$SITE/touched"; echo writable; fi
"""


def files_of_pip() -> dict[str, bytes]:
    found = importlib.metadata.distribution("pip")
    paths = [path for path in found.files or () if path.parts[0] == "pip" and path.suffix != ".pyc"]
    return {path.as_posix(): path.locate().read_bytes() for path in paths}


def listing(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Every file, link and folder of an environment as it lies there; caches of imports come and go."""
    found = {}
    for path in folder.rglob("*"):
        if "__pycache__" not in path.parts:
            about = path.lstat()
            changed = 0 if path.is_dir() else about.st_mtime_ns
            found[str(path)] = (about.st_mode, changed, os.readlink(path) if path.is_symlink() else "")
    return found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    pip = files_of_pip()
    pip["pip/__init__.py"] = pip["pip/__init__.py"].replace(b"__version__ = ", b'__version__ = "99.0" or ')
    pip["pip-99.0.dist-info/entry_points.txt"] = b"[console_scripts]\npip = pip._internal.cli.main:main\n"
    wheel(folder, "pip", "99.0", pip)
    wheel(folder, "tiny", "1.0", {"tiny.py": module("1.0")})
    wheel(folder, "seen", "2.0", {"seen.py": module("2.0")})
    return folder


@pytest.fixture(scope="module")
def developer(tmp_path_factory) -> Path:
    """An environment with a private pip, a package, and all that runs the emulator."""
    folder = tmp_path_factory.mktemp("developer") / "env"
    venv.create(folder, symlinks=True, with_pip=False)
    packages = folder / PACKAGES
    for name in importlib.metadata.distribution("pip").files or ():
        if name.parts[0].startswith("pip") and name.locate().exists():
            (packages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name.locate(), packages / name)
    (packages / "seen.py").write_bytes(module("1.0"))
    about = packages / "seen-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: seen\nVersion: 1.0\n")
    (about / "RECORD").write_text("seen.py,,\nseen-1.0.dist-info/METADATA,,\nseen-1.0.dist-info/RECORD,,\n")
    (about / "INSTALLER").write_text("pip\n")
    lines = [f"import site; site.addsitedir({place!r})\n" for place in site.getsitepackages()]
    (packages / "others.pth").write_text("".join(lines))
    (packages / "sitecustomize.py").write_text(DENIED)
    return folder


@pytest.fixture(params=["", "denied"], ids=["namespaces", "no namespaces"])
def cloud(request, developer, tmp_path, monkeypatch) -> Iterator[Cloud]:
    monkeypatch.setenv("TEST_DENIED", request.param)
    monkeypatch.setattr(sys, "executable", str(developer / "bin" / "python"))
    with Cloud(tmp_path / "data") as cloud:
        cloud.denied = bool(request.param)
        yield cloud


@pytest.mark.full
def test_a_jobs_installs_upgrades_and_removals_leave_the_developers_packages_alone(cloud, developer, wheels) -> None:
    given = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_COMPILE": "1"}
    given["SITE"] = str(developer / PACKAGES)
    env = [{"name": name, "value": value} for name, value in given.items()]
    before = listing(developer)
    job = reached(cloud, created(cloud, {"command": ["sh", "-c", PROGRAM], "env": env}))
    said = texts(cloud, job)
    assert listing(developer) == before, said
    assert job.state.name == "JOB_STATE_SUCCEEDED", said
    heard = [line for line in said if line.split()[0] in ("pip", "user", "seen", "script")]
    assert heard == ["pip 99.0", "user 1.0", "seen 2.0 2.0", "script 2.0", "seen 1.0"]
    assert ("writable" in said) is cloud.denied
    assert any("Read-only" in line for line in said) is not cloud.denied


def test_a_job_works_with_its_data_folder_within_the_developers_environment(developer, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", str(developer / "bin" / "python"))
    command = ["sh", "-c", "echo x > here && echo y > $TMPDIR/there && echo z > /gcs/mine/z && cat here"]
    with Cloud(developer / "data") as cloud:
        cloud.client().create_bucket("mine", location="us-central1")
        job = reached(cloud, created(cloud, {"command": command}))
        assert (job.state.name, texts(cloud, job)) == ("JOB_STATE_SUCCEEDED", ["x"])
    shutil.rmtree(developer / "data")
