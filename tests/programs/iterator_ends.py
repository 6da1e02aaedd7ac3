"""How long the ends of iterators take on one CPU: `python iterator_ends.py [patched]` prints JSON, by what had iterated."""

import gc
import json
import os
import sys
import threading
import time

if "patched" in sys.argv:
    from sdk.runtime.patches import install, iterator_ends

    install(iterator_ends.patches())
import tensorflow as tf

tf.constant(0)  # makes the threads of TensorFlow, for all CPUs
CPUS = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(CPUS)})
AGE_S = 0.9  # after 10, 20, 40 ... ms, the tuning sleeps from 0.63 to 1.27 s


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(10**9).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def set_policy(policy: int) -> None:
    """Change the thread that releases iterators. What an idle one wakes on the same CPU runs at once; others need bad luck."""
    named = [each for each in threading.enumerate() if each.name == "podlift-iterator-ends"]
    for thread in named or [threading.main_thread()]:
        os.sched_setscheduler(thread.native_id, policy, os.sched_param(0))


def taken(iterable) -> list[float]:
    return [taken_once(iterable) for _ in range(3)]


def aged(iterable):
    iterator, until = iter(iterable), time.monotonic() + AGE_S
    while time.monotonic() < until:
        next(iterator)
        time.sleep(0.01)
    return iterator


def taken_once(iterable) -> float:
    gc.collect()
    gc.freeze()  # the collection below looks at objects made from here on
    iterator = aged(iterable)
    set_policy(os.SCHED_IDLE)
    begun = time.monotonic()
    del iterator
    gc.collect()
    took_s = time.monotonic() - begun
    set_policy(os.SCHED_OTHER)
    return took_s


def at_once() -> int:
    """Return how many calls of a slow map ran at the same time, as the tuning decided."""
    os.sched_setaffinity(0, CPUS)
    lock, running, most = threading.Lock(), 0, 0

    def slow(x):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return x

    numbers = tf.data.Dataset.range(100)
    calls = numbers.map(lambda x: tf.numpy_function(slow, [x], tf.int64), num_parallel_calls=tf.data.AUTOTUNE)
    assert sorted(int(x) for x in calls) == list(range(100))
    return most


mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
found = {
    "one device": taken(numbers()),
    "mirrored": taken(mirrored.experimental_distribute_dataset(numbers().batch(2))),
}
kept = aged(numbers())  # at the end of the process
found["at once"] = at_once()
print(json.dumps(found), flush=True)
set_policy(os.SCHED_IDLE)
del kept
set_policy(os.SCHED_OTHER)
