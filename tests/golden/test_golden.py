"""Run directories of released versions stay readable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import sdk
from sdk.checkpoint import catalog, restore
from sdk.storage.registry import open_store

RUNS = sorted((Path(__file__).parent).glob("*/runs/*"))


def test_there_is_a_run_of_every_released_version() -> None:
    assert [path.parent.parent.name for path in RUNS] == ["v0.1.0"]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.parent.name)
def test_an_old_run_can_be_attached_and_read_from_wherever_it_lies(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / path.name
    shutil.copytree(path, copy)
    run = sdk.attach(copy)
    status = run.status()
    assert (status.state, status.reason, status.exit_code, status.attempts) == (
        sdk.State.SUCCEEDED,
        sdk.Reason.DONE,
        0,
        1,
    )
    assert run.result().metrics == {"loss": pytest.approx(1 / 3)}
    assert "hello from worker-0" in [line.text for line in run.logs(task="worker-0")]
    assert set(status.timings) == {"started", "entry", "first_step", "finished"}
    assert [info.id for info in sdk.runs(root=tmp_path)] == [run.id]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("0000.supervisor.000003.final.json", b"", "damaged"),
        ("0000.supervisor.000003.final.json", b'{"version": 7}', "version 1"),
        ("0000.supervisor.000003.final.json", b'{"version": 1, "time": 1, "data": {}}', "are damaged"),
        (
            "0000.supervisor.000003.final.json",
            b'{"version":1,"time":1,"data":{"state":"ODD","reason":"done"}}',
            "are damaged",
        ),
        ("notes.txt", b"hello", "not the name of a record"),
    ],
)
def test_a_damaged_record_is_reported_and_not_repaired(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    copy = tmp_path / "runs" / RUNS[0].name
    shutil.copytree(RUNS[0], copy)
    (copy / "events" / name).write_bytes(content)
    with pytest.raises(sdk.CorruptRunError, match=said):
        sdk.attach(copy).status()
    assert (copy / "events" / name).read_bytes() == content
    assert [info.status for info in sdk.runs(root=tmp_path)] == [None]


def test_checkpoints_of_the_first_format_are_read() -> None:
    store = open_store(str(Path(__file__).parent / "store-1"))
    found = restore.newest(store)
    assert found is not None
    assert (found.manifest.format_version, found.manifest.step, found.manifest.position["at"]["batch"]) == (1, 4, 4)
    total = found.arrays["total"]
    assert (total.dtype, total.shape, int.from_bytes(bytes(total.data), "little")) == ("int64", (), 10)
    assert set(found.blobs[0]) == {"own", "random", "data"}
    assert [(entry.step, entry.reason) for entry in catalog.list_checkpoints(store)] == [
        (2, "interval"),
        (4, "interval"),
    ]
