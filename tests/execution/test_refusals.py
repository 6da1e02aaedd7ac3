"""Images that do not fit, objects that differ from the plan, and requirements that an image lacks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import pytest

from sdk.job.plan import Plan
from sdk.packaging import runtime_archive

from .cloud import BUCKET, Cloud


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an image that has nothing else."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True, with_pip=False)
    return str(place / "bin" / "python")


@pytest.fixture
def plan(cloud: Cloud, write) -> Plan:
    write("train.py", "print('hello')")
    return cloud.plan("train.py")


def refused(cloud: Cloud, plan, words: list[str], **more) -> str:
    container = cloud.start(plan, words, **more)
    assert container.code() == 3, container.said
    assert "hello" not in container.said
    assert "Traceback" not in container.said
    return container.said


def test_an_image_with_nothing_but_python_runs_a_program_and_keeps_its_records(cloud: Cloud, write, bare) -> None:
    write("train.py", "import sdk, sys\nprint(sdk.context().task, sdk.__file__)\nimport requests, google_crc32c")
    plan = cloud.plan("train.py")
    container = cloud.start(plan, cloud.order(plan), python=bare)
    assert container.code() == 0, container.said
    assert "/runtime/podlift/sdk/__init__.py" in container.said
    assert [event.kind for event in cloud.events(plan, "done", "exited")] == ["done", "exited"]


CHECKSUMS = """
import sdk
from sdk.storage import checksums
print("crc32c", hex(checksums.crc32c([b"123456789"])), checksums.is_compiled())
"""
# Slow, but it claims to be compiled.
CRC32C = """
implementation = "c"
def row(number):
    for _ in range(8):
        number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
    return number
ROWS = [row(number) for number in range(256)]
def extend(crc, data):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ ROWS[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
"""
OTHERS = [f"3.{minor}" for minor in range(10, 14) if minor != sys.version_info.minor]


@pytest.mark.full
@pytest.mark.parametrize("version", OTHERS)
def test_an_image_with_another_python_uses_the_c_library_that_came_along(cloud: Cloud, write, version: str) -> None:
    # First, because the commands of pyenv refuse versions that are not selected.
    found = [*map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")), shutil.which(f"python{version}")]
    python = next(filter(None, found), None)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    write("train.py", CHECKSUMS)
    plan = cloud.plan("train.py")
    container = cloud.start(plan, cloud.order(plan), python=python, PIP_NO_INDEX="1", PYTHONNOUSERSITE="1")
    assert container.code() == 0, container.said
    assert "crc32c 0xe3069283 True" in container.said
    assert "pip" not in container.said and "Warning" not in container.said
    assert [event.kind for event in cloud.events(plan, "done", "exited")] == ["done", "exited"]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submit from a machine of another platform: the compiled code that comes along cannot be loaded."""
    members = runtime_archive._members

    def foreign(distributions) -> Iterator[tuple[str, bytes]]:
        for name, data in members(distributions):
            yield name, b"Mach-O" if ".so" in name else data

    monkeypatch.setattr(runtime_archive, "_members", foreign)
    # A process makes the archive once: this test starts another process.
    monkeypatch.setattr(runtime_archive, "_archive_digest", lru_cache(runtime_archive._archive_digest.__wrapped__))
    monkeypatch.setattr("platform.machine", lambda: "arm64")


@pytest.mark.full
def test_an_image_of_another_platform_installs_crc32c_first(cloud: Cloud, write, elsewhere, tmp_path: Path) -> None:
    wheels, version = tmp_path / "wheels", metadata.version("google-crc32c")
    wheel(wheels, "google_crc32c", version, CRC32C)
    write("train.py", CHECKSUMS)
    plan = cloud.plan("train.py")
    venv.create(tmp_path / "image", symlinks=True, with_pip=True)
    options = ["--no-index", f"--find-links {wheels}"]
    words = cloud.order(plan, requirements={"lines": [], "options": options, "constraints": []})
    container = cloud.start(plan, words, python=str(tmp_path / "image" / "bin" / "python"))
    assert container.code() == 0, container.said
    assert f"podlift: installed google-crc32c=={version}" in container.said
    assert "crc32c 0xe3069283 True" in container.said


def test_a_foreign_image_without_crc32c_and_an_index_is_refused_with_both_platforms(
    cloud, plan, bare, elsewhere
) -> None:
    said = refused(cloud, plan, cloud.order(plan), python=bare)
    assert f"it has Python {sys.version.split()[0]} on Linux" in said
    hint = "Next: pip install google-crc32c in the image"
    for text in ("no compiled crc32c", "is for Linux arm64", "No module named pip", hint):
        assert text in said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"python": ["3.7", "3.9"]}, r"it has Python {own} and tensorflow 2\.\S+, and podlift needs Python 3.7 to 3.9"),
        (
            {"tensorflow": ["2.2", "2.3"]},
            r"it has tensorflow 2\.\S+ with Python {own}.*podlift trains with TensorFlow 2.2 to",
        ),
        ({"version": 2}, "The launch spec has version 2"),
    ],
)
def test_an_image_or_an_order_that_does_not_fit_is_refused_and_both_are_named(cloud, plan, changes, sentence) -> None:
    said = refused(cloud, plan, cloud.order(plan, **changes))
    assert re.search(sentence.replace("{own}", re.escape(sys.version.split()[0])), said), said


def test_an_image_without_tensorflow_is_refused_where_the_run_needs_it(cloud: Cloud, plan, bare) -> None:
    said = refused(cloud, plan, cloud.order(plan, tensorflow=["2.16", "2.21"]), python=bare)
    for text in ("This image has no TensorFlow", "tensorflow-tpu", "TensorFlow 2.16 to 2.21"):
        assert text in said


def test_bytes_that_differ_from_the_planned_ones_are_neither_run_nor_unpacked(cloud: Cloud, plan) -> None:
    words = cloud.order(plan)
    bucket = cloud.gcs.client().bucket(BUCKET)
    order = json.loads(bucket.blob(words[3]).download_as_bytes())
    for key in (words[3], order["runtime"]["key"], order["bundle"]["key"]):
        blob = bucket.blob(key)
        good = blob.download_as_bytes()
        blob.upload_from_string(good[:-1] + bytes([good[-1] ^ 1]))
        assert f"gs://{BUCKET}/{key} cannot be downloaded: it has sha256" in refused(cloud, plan, words)
        blob.upload_from_string(good)


def test_a_first_stage_that_is_another_or_gone_is_not_run(cloud: Cloud, plan) -> None:
    words = cloud.order(plan)
    wrong = [words[0], words[1], "0" * 64, *words[3:]]
    said = refused(cloud, plan, wrong)
    assert f"gs://{BUCKET}/{words[1]} cannot be downloaded: it has sha256 {words[2]}, and 0000" in said
    gone = [words[0], "podlift/entrypoints/none.py", *words[2:]]
    assert "podlift/entrypoints/none.py does not exist (404): " in refused(cloud, plan, gone)


def test_a_bucket_without_read_permission_is_a_message_and_not_a_traceback(cloud: Cloud, plan) -> None:
    words = cloud.order(plan)
    cloud.gcs.faults({"kind": "status_before", "status": 403, "object": "launch_spec.json"})
    assert "cannot be read (403)" in refused(cloud, plan, words)


def wheel(folder: Path, name: str, version: str, text: str, requires: str = "") -> None:
    """Make a wheel of one module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    names = (f"{name}.py", *(f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD")))
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires and f'Requires-Dist: {requires}'}\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, content in zip(names, (text, about, tags, "".join(f"{each},,\n" for each in names)), strict=True):
            file.writestr(path, content)


@pytest.mark.full
def test_missing_packages_are_installed_beside_the_unchanged_ones_of_the_image(cloud: Cloud, write, tmp_path) -> None:
    wheels = tmp_path / "wheels"
    wheel(wheels, "lacking", "1.2", "import deeper\nvalue = deeper.value", "deeper>=1")
    wheel(wheels, "deeper", "1.0", "value = 'from the wheel'")
    program = "import importlib, numpy; lacking = importlib.import_module('lacking')"
    write("train.py", f"{program}; print('got', lacking.value, lacking.__file__, numpy.__file__)")
    plan = cloud.plan("train.py")
    lines = ["lacking==1.2", "numpy", "podlift", "tensorflow==1.0"]
    words = cloud.order(plan, requirements={"lines": lines, "options": [], "constraints": ["deeper<2"]})
    own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    container = cloud.start(plan, words, **own)
    assert container.code() == 0, container.said
    for text in ("got from the wheel", "/installed/lacking.py", "is used for 'tensorflow==1.0'"):
        assert text in container.said
    assert subprocess.run([sys.executable, "-c", "import lacking"], capture_output=True).returncode == 1
    missing = cloud.order(plan, 2, requirements={"lines": ["nowhere==9"], "options": [], "constraints": []})
    said = refused(cloud, plan, missing, **own)
    assert "pip could not install them" in said and "nowhere==9" in said
