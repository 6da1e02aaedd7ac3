"""Takes batches in a compiled function, as `fit` does, with a task's account or without; prints CPU nanoseconds per step."""

import os
import sys
import tempfile
import time

from sdk.records.recorder import PROGRESS
from sdk.runtime.account import STEP, Account
from sdk.runtime.hooks.input_wait import InputWait
from sdk.runtime.patches import install
from sdk.runtime.reporting import ProgressWriter

STEPS = 20_000
accounted = sys.argv[1] == "accounted"
account = Account()
if accounted:
    install(InputWait(account).patches())

import tensorflow as tf  # noqa: E402


class Plain(ProgressWriter):
    """Writes the progress alone, as before there was an account."""

    def _write(self) -> None:
        if self._map is not None and os.getpid() == self._pid:
            position = (self._epoch, self._epochs, self._epoch_step, self._epoch_steps)
            PROGRESS.pack_into(self._map, 0, self._steps, self._beats, *position)


writer = (ProgressWriter if accounted else Plain)(f"{tempfile.mkdtemp()}/progress", account)
account.in_fit = True
feed = iter(tf.data.Dataset.range(STEPS + 100))
take = tf.function(lambda iterator: next(iterator) + 1)
for _ in range(100):
    take(feed)
begun = time.process_time_ns()
for _ in range(STEPS):
    if accounted:
        account.enter(STEP)
    take(feed)
graph = (time.process_time_ns() - begun) / STEPS
begun = time.process_time_ns()
for _ in range(STEPS):
    if accounted:
        account.enter(STEP)
    writer.step()
print(graph, (time.process_time_ns() - begun) / STEPS)
