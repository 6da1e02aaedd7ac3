"""The archive of podlift for training images: written once, the same bytes anywhere, and nothing in it that does not belong."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

import sdk
from sdk import InputError
from sdk.packaging.runtime_archive import entrypoint_file, loader, runtime_archive

HOME = Path(sdk.__file__).parent


def test_two_caches_hold_the_same_bytes_and_the_second_question_makes_nothing(tmp_path: Path) -> None:
    one, other = runtime_archive(tmp_path / "one"), runtime_archive(tmp_path / "other")
    assert one.digest == other.digest == hashlib.sha256(one.path.read_bytes()).hexdigest()
    assert one.path == tmp_path / "one" / "runtime" / f"{one.digest}.tar"
    made = one.path.stat().st_ino
    assert runtime_archive(tmp_path / "one") == one
    assert one.path.stat().st_ino == made
    assert sorted(path.suffix for path in one.path.parent.iterdir()) == [".tar"]


def test_a_removed_or_damaged_archive_is_made_again(tmp_path: Path) -> None:
    one = runtime_archive(tmp_path)
    whole = one.path.read_bytes()
    for damage in (lambda: one.path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:]), one.path.unlink):
        damage()
        assert runtime_archive(tmp_path) == one
        assert one.path.read_bytes() == whole


def test_a_file_that_changes_while_the_process_runs_is_in_the_next_archive(tmp_path: Path, monkeypatch) -> None:
    copy = tmp_path / "sdk"
    shutil.copytree(HOME, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("sdk.packaging.runtime_archive._PACKAGE", copy)
    before = runtime_archive(tmp_path)
    (copy / "ids.py").write_text("changed = True\n")
    after = runtime_archive(tmp_path)
    assert after.digest != before.digest
    with tarfile.open(after.path) as tar:
        assert tar.extractfile("podlift/sdk/ids.py").read() == b"changed = True\n"  # type: ignore[union-attr]


def test_it_holds_podlift_as_it_is_and_compiled_code_of_checksums_only(tmp_path: Path) -> None:
    with tarfile.open(runtime_archive(tmp_path).path) as tar:
        names = tar.getnames()
        assert all(member.isreg() and member.mtime == 0 and member.uid == 0 for member in tar)
    own = {f"podlift/sdk/{path.relative_to(HOME)}" for path in HOME.rglob("*.py")}
    assert own <= set(names)
    assert not [name for name in names if name.endswith(".pyc") or ".." in name or "cryptography" in name]
    compiled = [name for name in names if ".so" in name]
    assert compiled
    assert all(name.startswith("vendor/google_crc32c") for name in compiled)
    brought = {name.split("/")[1] for name in names if name.startswith("vendor/") and name.count("/") > 1}
    assert {"requests", "urllib3", "certifi", "idna", "charset_normalizer", "google_crc32c"} <= brought


@pytest.mark.process
def test_a_bare_python_that_has_it_speaks_to_buckets(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    with tarfile.open(runtime_archive(tmp_path).path) as tar:
        tar.extractall(tmp_path / "archive")
    code = (
        "import sys, sdk.storage.gcs.requests, sdk.storage.gcs.errors, sdk.records.sync.push; "
        "from sdk.storage.gcs.auth import connection; print(connection().address, type(connection().session.auth).__name__); "
        "import sdk.execution.container; "
        "print([name for name in sys.modules if name.split('.')[0] in ('google', 'cryptography', 'pydantic')])"
    )
    path = os.pathsep.join(str(tmp_path / "archive" / part) for part in ("podlift", "vendor"))
    command = [str(tmp_path / "bare" / "bin" / "python"), "-c", code]
    shown = subprocess.run(command, env={"PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == ["https://storage.googleapis.com MachineToken", "[]"]


def test_a_package_that_is_not_installed_or_has_no_list_of_files_is_named(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata.Distribution, "files", None)
        with pytest.raises(InputError, match="but its installer did not list its files"):
            runtime_archive(tmp_path)
    real = importlib.metadata.distribution

    def without(name: str) -> importlib.metadata.Distribution:
        return real("no-such-package" if name == "certifi" else name)

    monkeypatch.setattr(importlib.metadata, "distribution", without)
    with pytest.raises(InputError, match=r"'certifi', which is not installed here. Next: pip install certifi"):
        runtime_archive(tmp_path)


def test_loader_and_entrypoint_are_one_file_each_for_any_python_podlift_may_meet() -> None:
    digest, text = entrypoint_file().digest, entrypoint_file().path.read_bytes()
    assert hashlib.sha256(text).hexdigest() == digest
    for stage in (text, loader().encode()):
        # A Python that is too old has to come as far as the sentence that says so.
        tree = ast.parse(stage, feature_version=(3, 8))
        imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in imported} <= {*sys.stdlib_module_names, "__future__"}


_IMPORT_ALL = """
import importlib, pkgutil, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
count = 0
for room in ("runtime", "checkpoint", "storage", "records", "process"):
    package = importlib.import_module(f"sdk.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"sdk.{room}."):
        try:
            importlib.import_module(module.name)
            count += 1
        except ModuleNotFoundError as error:
            if error.name not in ("numpy", "tensorflow", "keras", "tf_keras"):
                print(module.name, error)
print(count)
"""
_OF_THE_CLIENT = "psutil pydantic pydantic_core packaging pathspec click typer rich google fsspec tomli starlette"


@pytest.mark.process
def test_modules_of_a_task_need_only_the_standard_library(tmp_path: Path) -> None:
    """TensorFlow and NumPy are blocked because they take seconds: their importers run beside them."""
    blocked = f"{_OF_THE_CLIENT} numpy tensorflow keras tf_keras"
    command = [sys.executable, "-c", _IMPORT_ALL, blocked]
    shown = subprocess.run(command, cwd=HOME.parent, capture_output=True, text=True, timeout=60).stdout.split("\n")
    *failed, count, end = shown
    assert (failed, end) == ([], "")
    assert int(count) > 80


@pytest.mark.process
def test_late_imports_of_a_training_do_not_load_modules_of_the_project() -> None:
    program = "import sys, sdk.runtime.bootstrap\nbefore = {*sys.modules}\nimport sdk.checkpoint.manager\n"
    program += "print(len({*sys.modules} - before), *(name for name in {*sys.modules} - before if '.' not in name))"
    shown = subprocess.run([sys.executable, "-c", program], cwd=HOME.parent, capture_output=True, text=True, check=True)
    count, *others = shown.stdout.split()
    assert int(count) > 5
    assert others == [], "the project may have a module of that name"
