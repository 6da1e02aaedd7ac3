"""A submit to Vertex AI while another process removes the same root."""

from __future__ import annotations

import time

import pytest
from support import LIMIT_S

import sdk
from sdk.records.sync import push
from sdk.status import State
from sdk.storage.gcs.files import BucketFiles
from sdk.upkeep import remove
from sdk.upkeep.remove import root as removed


@pytest.mark.full
def test_a_job_submitted_during_a_removal_finds_its_containers_downloads(cloud, write, monkeypatch) -> None:
    """The submit comes between two removals: removed files are uploaded again, and the rest stays."""
    write("program.py", "print('here')")
    cloud.faults({"api": "vertex", "kind": "hold"})
    first = sdk.submit("program.py", backend=cloud.backend())
    first.cancel(grace_s=0)
    assert first.wait(LIMIT_S).state is State.CANCELLED
    cloud.faults()
    for module, name in ((removed, "SETTLED_S"), (removed, "JOB_SETTLED_S"), (push, "_FRESH_S")):
        monkeypatch.setattr(module, name, -2.0)
    root = f"gs://{cloud.bucket}/podlift"
    found = remove.find(root, older_than_s=0.0, keep=0, now=time.time())
    assert {item.kind for item in found.items} == {"run", "bundle", "runtime", "entrypoint"}
    runs: list[sdk.Run] = []

    def delete(files: BucketFiles, version, original=BucketFiles.delete) -> bool:
        done = original(files, version)
        if version.name.startswith("runtime/"):
            runs.append(sdk.submit("program.py", backend=cloud.backend()))
        return done

    monkeypatch.setattr(BucketFiles, "delete", delete)
    done = remove.remove(found)
    assert [each.path.split("/")[-2] for each in done.skipped] == ["entrypoints"], done
    (run,) = runs
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    assert [line.text for line in run.logs()] == ["here"]
