"""Run on an emulated Vertex AI that takes a machine away. Run: python examples/02_emulated_cloud.py"""

import os
import tempfile
import time
from pathlib import Path

import sdk
from sdk.testing.vertex import Cloud


def train(steps: int) -> dict:
    ctx = sdk.context()
    for step in range(1, steps + 1):
        print("step", step, flush=True)
        ctx.report({"loss": 1 / step}, step=step)
        if ctx.should_stop():
            break
        time.sleep(0.05)
    return {"attempt": int(os.environ["PODLIFT_ATTEMPT"])}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Cloud(Path(folder)) as cloud:
        os.environ["PODLIFT_EMULATOR"] = cloud.url  # without it, the same call would go to Google
        cloud.make_bucket()
        cloud.faults({"api": "vertex", "kind": "preempt", "replica": "workerpool0-0", "log": "step 20$"})
        run = sdk.submit(train, args={"steps": 60}, workers=2, accelerator="t4", backend=cloud.backend())
        print(run.result(timeout_s=240).value, run.status().attempts, "attempts")
