"""Secrets of a job on Vertex AI: named in the plan, read by the tasks, stored and shown nowhere."""

import shutil
from collections.abc import Callable, Iterator

import pytest
from support import LIMIT_S, PROGRAMS

import sdk
from sdk import backends

ACCOUNT = "trainer@my-project.iam.gserviceaccount.com"
KEY = "projects/my-project/secrets/api-key"
PROGRAM = (PROGRAMS / "secret_in_output.py").read_text()


@pytest.fixture
def keep(cloud) -> Iterator[Callable[..., None]]:
    """Make versions of the secret, from 1: `keep("first", "second")`."""

    folder = cloud.folder / "secrets" / "my-project" / "api-key"

    def write(*values: str) -> None:
        folder.mkdir(parents=True)
        for number, value in enumerate(values, 1):
            (folder / str(number)).write_text(value)

    yield write
    shutil.rmtree(folder)


def job() -> sdk.Job:
    return sdk.Job("program.py", env={"API_KEY": sdk.Secret(KEY)})


def test_a_task_reads_the_planned_version_and_its_value_is_stored_and_shown_nowhere(cloud, keep, write) -> None:
    write("program.py", PROGRAM)
    keep("old-value-1", "s3cr3t-value")
    plan = sdk.plan(job(), backend=cloud.backend(service_account=ACCOUNT))
    assert plan.job.secrets["API_KEY"].name == f"{KEY}/versions/2"
    assert f"API_KEY (from {KEY}/versions/2)" in str(plan)
    assert "API_KEY" not in str(backends.load("vertex").render(plan).body), "the request holds not even the name"
    (cloud.folder / "secrets" / "my-project" / "api-key" / "3").write_text("a later value")
    run = sdk.submit(job(), backend=cloud.backend(service_account=ACCOUNT))
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    lines = [line.text for line in run.logs()]
    assert "backwards eulav retal a" in lines and "split ***" in lines
    failure = run.status().failure
    assert "refused: ***" in failure.message + failure.traceback
    for blob in cloud.client().list_blobs(cloud.bucket):
        assert b"a later value" not in blob.download_as_bytes(), blob.name
    assert "a later value" not in "\n".join(lines)


def test_a_missing_secret_and_one_without_a_reader_are_refused(cloud, keep, write) -> None:
    write("program.py", PROGRAM)
    backend = cloud.backend(service_account=ACCOUNT)
    with pytest.raises(
        sdk.InputError, match=r"newest version of the secret API_KEY is not known: .+ 404 .+versions list"
    ):
        sdk.plan(job(), backend=backend)
    named = sdk.Job("program.py", env={"API_KEY": sdk.Secret(f"{KEY}/versions/7")})
    assert sdk.plan(named, backend=backend).job.secrets["API_KEY"].name == f"{KEY}/versions/7"
    keep("value")
    with pytest.raises(sdk.InputError, match=rf"API_KEY: a secret needs a service account.+secretAccessor on {KEY}\."):
        sdk.plan(job(), backend=cloud.backend())
