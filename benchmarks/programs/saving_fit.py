"""A `fit` that is saved every few steps, in the way that SAVING_WAY names, and what each of its steps took.

All ways are measured in the same place: from the end of a step, before any callback saves, to the beginning of the next.
"""

import json
import os
import time
from pathlib import Path

import keras
from saving_model import build, data, forget_peak, memory, size
from saving_ways import WAYS

FOLDER = Path(os.environ["SAVING_FOLDER"])
EVERY, STEPS = int(os.environ["SAVING_EVERY"]), int(os.environ["SAVING_STEPS"])


# Not in the callback: what a callback holds is part of the state that podlift saves.
STEP_TIMES, SEEN, PLAIN = [], {}, []


class Times(keras.callbacks.Callback):
    """Notes when each step was over, when the next was let in, and when it began."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def on_train_batch_begin(self, batch, logs=None):
        entered = time.time()
        # What is looked up here is neither the stall's nor the step's.
        for path, when in self.way.seen().items():
            SEEN.setdefault(path, when)
        if batch == EVERY // 2:
            forget_peak()
        STEP_TIMES.append({"entered": entered, "cpu": time.process_time(), "begun": time.time()})

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == EVERY:
            # The peak of steps without a save: the first one comes now.
            PLAIN.append(memory("VmHWM"))
            forget_peak()
        STEP_TIMES[-1]["ended"] = time.time()


def main():
    model = build(float(os.environ["SAVING_MB"]))
    where = FOLDER if os.environ["SAVING_WAY"] in ("podlift", "bucket") else FOLDER / "saved"
    where.mkdir(exist_ok=True)
    way = WAYS[os.environ["SAVING_WAY"]](model, str(where))
    model.fit(data(model, STEPS), callbacks=[Times(way), way.callback(EVERY)], verbose=0)
    peaks = {"plain": PLAIN[0], "saving": memory("VmHWM"), "state": size(model)}
    found = {"background": way.background, "steps": STEP_TIMES, "seen": sorted(SEEN.values()), "memory": peaks}
    (FOLDER / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
