"""The exit of a task that has lost its peers: what a program expects of it, without taking TensorFlow apart.

Python clears all imported modules on exit. With TensorFlow and Keras that takes half a second to a second, in a forked task
also because it touches memory that was shared until then, and the next attempt waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading

from .patches import iterator_ends


def leave(code: int) -> None:
    """Join threads, call exit handlers, drop what the program has made, flush, and end this process."""
    iterator_ends.leave_waiting()
    for step in (threading._shutdown, atexit._run_exitfuncs, _drop):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            step()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have closed or replaced them
            stream.flush()
    os._exit(code)


def _drop() -> None:
    # Writers flush when they are dropped. What was imported before the fork is not searched.
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    iterator_ends.settle()  # what is being dropped is not to be found below, and ended here
    for each in gc.get_objects():  # the files that other modules of the program hold
        if isinstance(each, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom) and not each.closed:
            with contextlib.suppress(Exception):
                each.flush()
