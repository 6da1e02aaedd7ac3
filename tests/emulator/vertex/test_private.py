"""The data folder holds secrets of callers: values of variables, objects, lines of logs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from served import body, pool

from sdk.emulator import data_folder


def open_to_others(folder: Path) -> list[str]:
    """Everything in a folder, and the folder itself, that other users may enter, read or change."""
    found = [folder, *folder.rglob("*")]
    return [str(each.relative_to(folder.parent)) for each in found if each.stat().st_mode & 0o077]


@pytest.fixture
def lax() -> None:
    old = os.umask(0)
    yield
    os.umask(old)


def test_the_variables_of_a_job_can_be_read_by_its_user_alone(serve, tmp_path, lax) -> None:
    served = serve()
    secret = "not-for-others-" + "x" * 20
    given = pool()
    given["container_spec"]["env"] = [{"name": "API_KEY", "value": secret}]
    served.create({**body(), "job_spec": {"worker_pool_specs": [given]}})
    served.ask("POST", "/storage/v1/b?project=p", {"name": "mine"})
    data = tmp_path / "data"
    holders = [path for path in data.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert holders, "the job is kept somewhere"
    assert open_to_others(data) == []


def test_a_folder_of_an_earlier_podlift_is_closed(serve, tmp_path) -> None:
    serve().stop()
    data = tmp_path / "data"
    for path in [data, *data.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    serve()
    assert open_to_others(data) == []


def test_a_folder_with_foreign_files_keeps_its_mode_and_new_files_in_it_are_private(tmp_path) -> None:
    shared = tmp_path / "project"
    shared.mkdir(mode=0o755)
    (shared / "train.py").write_text("")
    data_folder.make_data_folder(shared)
    data_folder.make_subfolder(shared / "vertex")
    database = data_folder.create_database(shared / "vertex" / "jobs.sqlite")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
