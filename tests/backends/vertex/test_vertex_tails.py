"""Logs of a run on Vertex AI after the log service has lost them, or with a log service that may not be read."""

from unittest.mock import Mock

import pytest
from support import LIMIT_S, heard

import sdk
from sdk.backends.vertex.job import logs
from sdk.errors import AccessError, MissingError
from sdk.job.job import FromCaller
from sdk.job.layout import RunPaths
from sdk.storage.gcs.files import BucketFiles


def test_logs_come_from_the_run_directory_once_the_service_has_none(cloud, write, monkeypatch) -> None:
    lines = ["import os, sys", "print('token', os.environ['MY_TOKEN'])", "print('an error', file=sys.stderr)"]
    write("program.py", "\n".join([*lines, "print('the end')"]))
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    run = sdk.submit(sdk.Job("program.py", env={"MY_TOKEN": FromCaller()}), backend=cloud.backend())
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert {line.text for line in run.logs()} == {"token s3cr3t-value", "an error", "the end"}
    for blob in cloud.client().list_blobs(cloud.bucket):
        assert b"s3cr3t" not in blob.download_as_bytes(), blob.name
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", f"{cloud.bucket}/podlift")
    assert [(info.url, info.backend) for info in sdk.runs()] == [(run.url, "vertex")]
    assert sdk.attach(run.id).url == run.url
    messages = heard()
    monkeypatch.setattr(logs, "query", lambda *args, **more: {})
    found = list(run.logs(task="chief-0", attempt=1))
    assert {line.text for line in found} == {"token ***", "an error", "the end"}
    assert {(line.task, line.attempt) for line in found} == {("chief-0", 1)}
    assert all(line.time is not None for line in found)
    assert [message.partition(" These ")[0] for message in messages] == ["The log service has no lines of this job."]
    assert list(run.logs(task="service")) == []
    refused = AccessError("The logs cannot be read: 403. This requires roles/logging.viewer on the project.")
    monkeypatch.setattr(logs, "query", Mock(side_effect=refused))
    assert {line.text for line in run.logs(follow=True)} == {"token ***", "an error", "the end"}
    assert messages[-1].startswith("The logs cannot be read: 403. This requires roles/logging.viewer on the project. ")
    for blob in cloud.client().list_blobs(cloud.bucket, match_glob="**/tails/**"):
        blob.delete()
    with pytest.raises(AccessError):
        list(run.logs())


def test_parts_are_read_in_their_order_and_tasks_by_the_time_of_their_uploads(podlift_gcs, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_gcs.url)
    bucket = podlift_gcs.client().create_bucket("mine")

    for attempt, task, begin, text in (
        (1, "chief-0", 1000, "c\n"),
        (1, "chief-0", 2, "b\n"),
        (1, "worker-0", 0, "w\n"),
        (1, "chief-0", 20_000_000, "d\nno end"),
        (1, "evaluator-0", 0, "not asked for\n"),
        (2, "chief-0", 0, "again\n"),
        (3, "chief-0", 0, "not asked for\n"),
    ):
        key = RunPaths.part(RunPaths("").tail(attempt, task), begin)
        bucket.blob(f"runs/r/{key}").upload_from_string(text)

    def found(tasks: list[str]) -> list[tuple[str, int, str, str]]:
        lines = logs.kept_lines("gs://mine/runs/r", [1, 2], tasks)
        return [(line.task, line.attempt, line.text, line.end) for line in lines]

    chief = [("chief-0", 1, text, "\n") for text in "bcd"] + [("chief-0", 1, "no end", "")]
    again = ("chief-0", 2, "again", "\n")
    assert found(["chief-0"]) == [*chief, again]
    both = found(["chief-0", "worker-0"])
    assert [line for line in both if line[0] == "chief-0"] == [*chief, again]
    assert both.index(("worker-0", 1, "w", "\n")) < both.index(chief[2]), "it was uploaded before"
    read = BucketFiles.read

    def removed(files: BucketFiles, name: str) -> bytes:
        if name.endswith(RunPaths.part("", 1000)):
            raise MissingError(name)
        return bytes(read(files, name))

    monkeypatch.setattr(BucketFiles, "read", removed)
    assert [text for _, _, text, _ in found(["chief-0"])] == ["b", "d", "no end", "again"], "its task still runs"
