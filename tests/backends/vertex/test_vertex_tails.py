"""Logs of a run on Vertex AI whose log service has lost them, or keeps them to itself."""

from __future__ import annotations

import pytest
from support import LIMIT_S, heard

import sdk
from sdk.backends.vertex import logs
from sdk.errors import AccessError
from sdk.spec.job import FromCaller
from sdk.testing.vertex import Cloud


def test_logs_come_from_the_run_directory_once_the_service_has_none(
    podlift_vertex: Cloud, write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        "program.py",
        """
        import os, sys
        print("token", os.environ["MY_TOKEN"])
        print("an error", file=sys.stderr)
        print("the end")
        """,
    )
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    job = sdk.Job("program.py", env={"MY_TOKEN": FromCaller()})
    run = sdk.submit(job, backend=podlift_vertex.backend())
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert {line.text for line in run.logs()} == {"token s3cr3t-value", "an error", "the end"}
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", f"{podlift_vertex.bucket}/podlift")
    assert [(info.url, info.backend) for info in sdk.runs()] == [(run.url, "vertex")]
    assert sdk.attach(run.id).url == run.url
    said = heard()
    monkeypatch.setattr(logs, "query", lambda *args, **more: {})
    found = list(run.logs(task="chief-0", attempt=1))
    assert {line.text for line in found} == {"token ***", "an error", "the end"}
    assert {(line.task, line.attempt) for line in found} == {("chief-0", 1)}
    assert all(line.time is not None for line in found)
    assert said == [
        "The log service has no lines of this job. These lines are the last 10.0 MB of each task, from the run's "
        "directory."
    ]
    assert list(run.logs(task="service")) == []

    def refuse(*args: object, **more: object) -> None:
        raise AccessError("The logs cannot be read: 403. This requires roles/logging.viewer on the project.")

    monkeypatch.setattr(logs, "query", refuse)
    assert {line.text for line in run.logs(follow=True)} == {"token ***", "an error", "the end"}
    assert said[-1].startswith(
        "The logs cannot be read: 403. This requires roles/logging.viewer on the project. These "
    )
    for blob in podlift_vertex.client().list_blobs(podlift_vertex.bucket, match_glob="**/tails/**"):
        blob.delete()
    with pytest.raises(AccessError):
        list(run.logs())
