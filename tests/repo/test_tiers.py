"""The guard of the tiers fails a test without a mark that starts a process or imports TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import REPO

pytestmark = pytest.mark.process


def outcome(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "tensorflow").mkdir()
    (folder / "tensorflow" / "__init__.py").write_text("")
    (folder / "tensorflow" / "raw_ops.py").write_text("")
    (folder / "conftest.py").write_text('pytest_plugins = ["tiers"]')
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {REPO / 'tests'} {folder}\n")
    (folder / "test_one.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:podlift", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import subprocess; subprocess.run(['true'])", "started a process: subprocess.Popen"),
        ("import os; os.fork() or os._exit(0)", "started a process: os.fork"),
        ("import tensorflow.raw_ops", "imported tensorflow"),
        ("pass", ""),
    ],
)
def test_a_test_without_a_mark_fails_for_a_process_or_an_import_and_names_it(
    tmp_path: Path, text: str, sentence: str
) -> None:
    done = outcome(tmp_path, f"def test_one():\n    {text}\n")
    assert done.returncode == (1 if sentence else 0), done.stdout
    assert (f"A test without a mark {sentence}" in done.stdout) == bool(sentence), done.stdout


def test_a_shared_fixture_that_starts_a_process_counts_for_each_test_that_uses_it(tmp_path: Path) -> None:
    done = outcome(
        tmp_path,
        "import pytest, subprocess\n"
        "@pytest.fixture(scope='module')\ndef shared():\n    subprocess.run(['true'])\n"
        "def test_first(shared): pass\ndef test_second(shared): pass\ndef test_other(): pass\n",
    )
    assert "2 failed, 1 passed" in done.stdout, done.stdout


@pytest.mark.full
def test_tests_of_a_file_go_to_one_worker(tmp_path: Path) -> None:
    """A file's fixtures would be made again for each of its tests, without a failure that says so."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tiers"]')
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {REPO / 'tests'}\n")
    tests = "".join(f"def test_{number}(worker_id): print(worker_id)\n" for number in range(8))
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(tests)
    options = ["-n", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider", "-p", "no:podlift"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for name in "ab":
        lines = [line for line in done.stdout.splitlines() if "PASSED" in line and f"test_{name}.py" in line]
        assert len(lines) == 8 and len({line.split("]")[0] for line in lines}) == 1, done.stdout


def test_each_change_without_a_visible_difference_is_of_a_line_that_exists() -> None:
    for entry in (REPO / "scripts" / "mutate_equivalent.txt").read_text().strip().split("\n\n")[1:]:
        file, *lines, _ = entry.splitlines()
        code = {line.strip() for line in (REPO / file).read_text().splitlines()}
        assert {line[2:] for line in lines if line[0] == "-"} <= code, f"scripts/mutate refuses the entry of {file}"
