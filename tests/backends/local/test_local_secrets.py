"""Secrets of a job that runs here: from the shell or a file, and in no log."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import LIMIT_S

import sdk

pytestmark = pytest.mark.process

KEY = "projects/my-project/secrets/api-key"
PROGRAM = """
import os, subprocess, sys
value = os.environ["API_KEY"]
print("backwards", value[::-1])
sys.stdout.write("split " + value[:4]); sys.stdout.flush()
sys.stdout.write(value[4:] + "\\n"); sys.stdout.flush()
subprocess.run(["echo", "a child prints", value], check=True)
raise RuntimeError("refused: " + value)
"""


@pytest.mark.parametrize("source", ["the shell", "a file"])
def test_a_task_gets_the_value_and_nothing_that_is_kept_shows_it(write, root: Path, monkeypatch, source: str) -> None:
    write("train.py", PROGRAM)
    outside = root.parent / "key.txt"
    outside.write_text("s3cr3t-value\n")
    if source == "the shell":
        monkeypatch.setenv("API_KEY", "s3cr3t-value")
    secret = sdk.Secret(KEY) if source == "the shell" else sdk.Secret(KEY, file=str(outside))
    run = sdk.submit(sdk.Job("train.py", env={"API_KEY": secret}))
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    lines = [line.text for line in run.logs()]
    assert lines[:3] == ["backwards eulav-t3rc3s", "split ***", "a child prints ***"]
    assert "RuntimeError: refused: ***" in lines
    assert "refused: ***" in str(run.status().failure)
    files = [path for path in Path(run.url).rglob("*") if path.is_file()]
    assert [path for path in files if b"s3cr3t-value" in path.read_bytes()] == []


def test_a_secret_without_a_value_here_or_with_an_absent_or_packaged_file_is_refused(write) -> None:
    write("train.py", PROGRAM)
    with pytest.raises(sdk.InputError, match=rf"secret API_KEY has no value here: {KEY}.+set API_KEY.+file="):
        sdk.plan(sdk.Job("train.py", env={"API_KEY": sdk.Secret(KEY)}))
    with pytest.raises(sdk.InputError, match=r"the file of the secret API_KEY cannot be read.+absent\.txt"):
        sdk.plan(sdk.Job("train.py", env={"API_KEY": sdk.Secret(KEY, file="absent.txt")}))
    write("key.txt", "s3cr3t-value")
    job = sdk.Job("train.py", env={"API_KEY": sdk.Secret(KEY, file="key.txt")}, code={"project": "."})
    with pytest.raises(sdk.InputError, match=r"key\.txt holds the secret API_KEY and would be packaged.+code_exclude"):
        sdk.plan(job)
    hidden = sdk.Job("train.py", env=job.env, code={"project": ".", "exclude": ["key.txt"]})
    assert "key.txt" not in {file.path for file in sdk.plan(hidden).code.files}
