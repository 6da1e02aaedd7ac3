"""Ends with iterators that have been used for six seconds, and prints the time at the end of all exit handlers."""

import atexit
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
atexit.register(lambda: print(time.time(), flush=True))
from sdk.runtime.patches import install, iterator_ends  # noqa: E402

install(iterator_ends.patches())
import tensorflow as tf  # noqa: E402

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
numbers = tf.data.Dataset.range(10**9).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
iterators = [iter(numbers) for _ in range(3)]
until = time.monotonic() + 6
while time.monotonic() < until:
    for iterator in iterators:
        next(iterator)
    time.sleep(0.01)
