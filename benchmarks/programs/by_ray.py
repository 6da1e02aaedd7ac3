"""The CNN loop by Ray Train's TensorflowTrainer on two workers, for the start benchmark, where Ray is installed."""

import os
import runpy
import sys
from pathlib import Path

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

PROGRAM = str(Path(__file__).with_name("cnn_loop.py"))


def loop(config):
    os.environ[config["variable"]] = config["mark"]
    runpy.run_path(config["program"], run_name="__main__")


if __name__ == "__main__":
    mark, storage, *steps = sys.argv[1:]
    trainer = TensorflowTrainer(
        loop,
        train_loop_config={
            "mark": mark,
            "program": PROGRAM,
            "variable": "STEPS_FOLDER" if steps else "FIRST_STEP_FILE",
        },
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=2)),
    )
    trainer.fit()
