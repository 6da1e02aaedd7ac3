"""Retrain each Monday on an emulated Google Cloud whose weeks take a second. Run: python examples/06_schedule.py"""

import os
import tempfile
import time
from pathlib import Path

import sdk
from sdk.testing.vertex import Cloud

PROGRAM = "import sys\nprint('trained on the data of', sys.argv[1])\n"

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Cloud(Path(folder)) as cloud:
        os.environ["PODLIFT_EMULATOR"] = cloud.url  # without it, the same calls would go to Google
        cloud.make_bucket()
        program = Path(folder, "project", "train.py")
        program.parent.mkdir()
        program.write_text(PROGRAM)
        weekly = sdk.schedule(
            sdk.Job(str(program), args=["{slot:%Y-%m-%d}"]),
            name="weekly",
            cron="0 3 * * 1",
            time_zone="Europe/Berlin",
            backend=cloud.backend(keeper_service_account="keeper@podlift.iam.gserviceaccount.com"),
            overlap="queue",
        )
        for week in (1, 2):
            cloud.advance(7 * 86400)
            # The keeper of the slot submits the run, and follows it to its end.
            while len(weekly.history()) < week or weekly.history(1)[0].ended is None:
                time.sleep(0.5)
        for record in weekly.history():
            print(record.slot, record.state, record.run)
