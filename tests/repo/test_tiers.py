"""The tables of the tiers name tests that exist, and the guard fails a test of the wrong tier."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import chain

import pytest
import tier_tables
import tiers
from support import REPO

TABLES = {
    "PROCESS": tier_tables.PROCESS,
    "TENSORFLOW": tier_tables.TENSORFLOW,
    "SMOKE": set(chain(*tier_tables.SMOKE.values())),
    "SURPLUS": set(chain(*tier_tables.SURPLUS.values())),
    "TOGETHER": set(chain(*tier_tables.TOGETHER.values())),
    "ALONE": tier_tables.ALONE,
    "WARM": tier_tables.WARM,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_entry_names_a_test_a_file_or_a_folder_that_exists(name: str) -> None:
    missing = []
    for entry in sorted(TABLES[name]):
        path, _, test = entry.partition("::")
        function = test.partition("[")[0].rpartition("::")[2]
        file = tiers.TESTS / path
        # It is written there, or imported from another file.
        named = re.compile(rf"^\s*(def {function}\(|{function},$)", re.MULTILINE)
        if not file.exists() or (function and not named.search(file.read_text())):
            missing.append(entry)
    assert not missing


def test_what_runs_by_default_is_of_the_tier_that_it_is_chosen_from() -> None:
    chosen = TABLES["SMOKE"]
    assert {entry for entry in chosen if not tiers.listed(entry, tier_tables.TENSORFLOW)} == set()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import subprocess; subprocess.run(['true'])", "started a process: subprocess.Popen"),
        ("import os; os.fork() or os._exit(0)", "started a process: os.fork"),
        ("import tensorflow.raw_ops", "imported tensorflow"),
        ("pass", ""),
    ],
)
@pytest.mark.process
def test_a_test_of_the_tier_unit_that_does_more_fails_and_says_what(tmp_path, text: str, sentence: str) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("")
    (tmp_path / "tensorflow" / "raw_ops.py").write_text("")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tiers"]')
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {REPO / 'tests'} {tmp_path}\n")
    (tmp_path / "test_one.py").write_text(f"def test_one():\n    {text}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:podlift", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == (1 if sentence else 0), done.stdout
    assert (f"A test of the tier unit {sentence}" in done.stdout) == bool(sentence), done.stdout


@pytest.mark.process
def test_a_shared_fixture_that_starts_a_process_counts_for_each_test_that_uses_it(tmp_path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tiers"]')
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {REPO / 'tests'}\n")
    (tmp_path / "test_two.py").write_text(
        "import pytest, subprocess\n"
        "@pytest.fixture(scope='module')\ndef shared():\n    subprocess.run(['true'])\n"
        "def test_first(shared): pass\ndef test_second(shared): pass\ndef test_other(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:podlift", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "2 failed, 1 passed" in done.stdout, done.stdout


def test_the_default_run_stays_within_its_budget_of_cpu_seconds() -> None:
    # As measured last, alone on two cores: these are 9 minutes there. What is new has to take the place of something.
    assert 0 < sum(tiers.budget().values()) <= 1010
