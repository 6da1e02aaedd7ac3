"""What the end of one task means for another that waits for it."""

from __future__ import annotations

import pytest
from support import LIMIT_S

import sdk

pytestmark = pytest.mark.process


def test_a_worker_that_crashes_once_the_chief_is_done_does_not_keep_it(write) -> None:
    text = """
        import os, pathlib, time
        if os.environ["PODLIFT_TASK"] != "chief-0":
            events = pathlib.Path(os.environ["PODLIFT_RUN"], "events")
            while not list(events.glob("0001.chief-0.*.done.json")):
                time.sleep(0.05)
            os.abort()
    """
    write("program.py", text)
    run = sdk.submit(sdk.Job("program.py", resources={"workers": 2}, limits={"exit_wait_s": 600}))
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
