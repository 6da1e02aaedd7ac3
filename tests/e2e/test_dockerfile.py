"""The Dockerfile of training images: its pins, its place in the wheel, and its pip lines in fresh environments."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from support import LIMIT_S, LONG_LIMIT_S, REPO

from sdk.checks import TENSORFLOW_RANGE
from sdk.hardware.accelerators import lookup
from sdk.job.images import FAMILIES

TEXT = (REPO / "Dockerfile").read_text()
STAGES = dict(re.findall(r"^FROM base AS (\w+)\n(.*?)(?=^FROM|\Z)", TEXT, re.M | re.S))


def pip_words(family: str) -> list[str]:
    [line] = re.findall(r"^RUN pip install (.*)$", STAGES[family], re.M)
    return line.split()


def tensorflow(family: str) -> tuple[int, ...]:
    [found] = [match for word in pip_words(family) if (match := re.match(r"tensorflow\S*==(\d+)\.(\d+)", word))]
    return tuple(map(int, found.groups()))


def test_every_family_has_a_pinned_stage_and_tpus_their_library_and_variables() -> None:
    assert tuple(STAGES) == FAMILIES
    assert re.search(r"^FROM python:\S+@sha256:[0-9a-f]{64} AS base$", TEXT, re.M)
    assert all(re.search(r"==[\d.]+$", word) for family in FAMILIES for word in pip_words(family))
    assert len(re.findall(r"^# (?:Python \S+ )?Pinned (?:on \d{4}-\d\d-\d\d|by hand)", TEXT, re.M)) == 1 + len(FAMILIES)
    assert pip_words("tpu")[:2] == ["tensorflow-tpu==2.20.0", "libtpu==0.0.14"]
    for part in ("NEXT_PLUGGABLE_DEVICE_USE_C_API=true", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH=/lib/libtpu.so"):
        assert part in STAGES["tpu"]
    assert re.search(r"^RUN ln -s .*libtpu\.so\" \\\n    /lib/libtpu\.so", STAGES["tpu"], re.M)


def test_podlift_and_the_hardware_run_every_pinned_release() -> None:
    low, high = TENSORFLOW_RANGE
    v5e = lookup("v5e-1").tensorflow
    assert low <= tensorflow("cpu") <= high and tensorflow("gpu") == tensorflow("cpu")
    assert v5e and v5e[0] <= tensorflow("tpu") <= v5e[1]


def test_the_wheel_has_the_dockerfile(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        assert found.read("sdk/backends/vertex/images/Dockerfile").decode() == TEXT


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_pins", REPO / "scripts" / "image_pins.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_takes_newer_pins_with_their_date_and_leaves_unknown_ones() -> None:
    digest, pins = "sha256:" + "1" * 64, {"tensorflow": "9.9.9", "google-cloud-storage": "", "libtpu": "0.1"}
    found = script().compare(TEXT, lambda name: pins.get(name, "2.20.0"), lambda name, tag: digest, "2030-01-02")
    assert f"FROM python:3.11-slim-bookworm@{digest} AS base" in found.text
    assert "tensorflow==9.9.9" in found.text and "tensorflow[and-cuda]==9.9.9" in found.text
    assert found.text.count("2030-01-02") == 3
    assert "libtpu: 0.1, here 0.0.14, by hand" in found.newer and "libtpu==0.0.14" in found.text
    assert found.unknown == ["google-cloud-storage (PyPI cannot be reached)"]
    same = script().compare(TEXT, lambda name: "", lambda name, tag: "", "2030-01-02")
    assert same.text == TEXT and same.newer == []


def in_fresh_environment(folder: Path, *words: str) -> None:
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "pip"), "install", "-q", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_LIMIT_S)
    assert done.returncode == 0, done.stderr


def said(folder: Path, code: str) -> str:
    words = [str(folder / "bin" / "python"), "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout.strip()


@pytest.mark.full
@pytest.mark.process
def test_the_pip_line_for_cpus_installs_a_tensorflow_that_computes(tmp_path: Path) -> None:
    in_fresh_environment(tmp_path, "--no-cache-dir", *pip_words("cpu"))
    code = "import tensorflow as tf, google.cloud.storage; print(tf.__version__, int(tf.reduce_sum([1, 2])))"
    version, total = said(tmp_path, code).split()
    assert tuple(map(int, version.split(".")[:2])) == tensorflow("cpu") and total == "3"


@pytest.mark.full
@pytest.mark.process
def test_the_pip_line_for_tpus_installs_the_library_that_is_linked(tmp_path: Path) -> None:
    in_fresh_environment(tmp_path, "--no-cache-dir", *pip_words("tpu"))
    # TensorFlow itself is not imported: without a TPU, its libtpu waits for the metadata server of a TPU's machine.
    assert said(tmp_path, "from importlib.metadata import version; print(version('libtpu'))") == "0.0.14"
    [command] = re.findall(r"python -c '(.*?)'", STAGES["tpu"])
    assert (Path(said(tmp_path, command)) / "libtpu.so").stat().st_size > 1 << 20


@pytest.mark.full
@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="CUDA's packages are for Linux")
def test_the_pip_line_for_gpus_is_resolved_in_a_fresh_environment(tmp_path: Path) -> None:
    in_fresh_environment(tmp_path, "--dry-run", "--no-cache-dir", *pip_words("gpu"))
