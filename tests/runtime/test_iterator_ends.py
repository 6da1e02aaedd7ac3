"""The end of an iterator of tf.data does not wait for the thread that tunes it."""

import importlib
import json
import os
import subprocess
import sys
import threading
import time
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, LONG_LIMIT_S, PROGRAMS, REPO, needs, python, until

import sdk
from sdk.runtime import template
from sdk.runtime.patches import iterator_ends


class Resource:
    """Ends when it is allowed to, or at once."""

    def __init__(self, may_end: threading.Event | None = None) -> None:
        self.may_end = may_end

    def __del__(self) -> None:
        if self.may_end is not None:
            self.may_end.wait(60)
        ENDED.append(threading.current_thread().name)


ENDED = list[str]()


def python_functions(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    registry = types.SimpleNamespace(size=lambda: count)
    monkeypatch.setitem(sys.modules, "tensorflow.python.ops.script_ops", types.SimpleNamespace(_py_funcs=registry))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module that was patched; its iterators have resources."""
    ENDED.clear()
    python_functions(monkeypatch, 0)
    monkeypatch.syspath_prepend(PROGRAMS)
    return importlib.import_module("patched_iterators").patched()


def test_an_iterator_ends_in_another_thread_while_its_owner_goes_on(made: Any) -> None:
    may_end = threading.Event()
    iterator = made.OwnedIterator([Resource(may_end)])
    begun = time.monotonic()
    del iterator
    assert time.monotonic() - begun < 5 and not ENDED
    may_end.set()
    until(lambda: ENDED)
    assert [threading.current_thread().name] != ENDED


def test_an_iterator_that_need_not_wait_has_ended_when_the_next_one_is_made(made: Any) -> None:
    for number in range(20):
        iterator = made.OwnedIterator([Resource()])
        del iterator
        made.OwnedIterator([None])
        assert len(ENDED) == number + 1


class Data(list[Any]):
    """What an iterator is made of; unlike a list, it can be referred to weakly."""


def test_the_data_of_an_iterator_that_waits_is_released_before_the_next_one_is_made(made: Any) -> None:
    may_end = threading.Event()
    data = Data([Resource(may_end)])
    kept = weakref.ref(data)
    iterator = made.OwnedIterator(data)
    del data
    assert kept() is not None
    del iterator
    made.OwnedIterator([None])
    assert kept() is None and not ENDED
    may_end.set()
    until(lambda: ENDED)


class Busy:
    """Works while it ends, with pauses."""

    def __del__(self) -> None:
        for _ in range(20):
            time.sleep(0.02)
        ENDED.append("busy")


def test_the_next_iterator_is_made_when_nothing_of_the_last_one_works_any_more(made: Any) -> None:
    iterator = made.OwnedIterator([Busy()])
    del iterator
    made.OwnedIterator([None])
    assert ENDED == ["busy"]
    may_end = threading.Event()
    asleep = made.OwnedIterator([Resource(may_end)])
    del asleep
    made.OwnedIterator([None])
    assert ENDED == ["busy"]
    may_end.set()
    until(lambda: len(ENDED) == 2)


class CacheDataset(list[Any]):
    _filename = types.SimpleNamespace(numpy=lambda: b"file")


@pytest.mark.parametrize("what", ["the program's functions", "a file that it writes"])
def test_an_iterator_that_may_still_use_something_ends_where_it_is_dropped(made: Any, monkeypatch, what: str) -> None:
    if what == "the program's functions":
        python_functions(monkeypatch, 1)
    iterator = made.OwnedIterator((list if what == "the program's functions" else CacheDataset)([Resource()]))
    del iterator
    assert [threading.current_thread().name] == ENDED


def test_a_view_of_an_iterator_does_not_end_it_and_neither_does_one_in_a_graph(made: Any) -> None:
    resource = Resource()
    owner = made.OwnedIterator([resource])
    view = made.OwnedIterator(components=[resource])
    del view
    assert owner._iterator_resource is resource and not ENDED
    made.context.executing_eagerly = lambda: False
    symbolic = made.OwnedIterator([resource])
    del symbolic
    assert not ENDED


def test_a_thread_with_a_name_that_is_no_text_counts_as_any_other() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    try:
        # The kernel cuts a name after 15 bytes, in the middle of a character if need be.
        Path(f"/proc/self/task/{thread.native_id}/comm").write_bytes(b"f\xc3\xbcnfzehn-byte\xc3")
        until(lambda: iterator_ends._sleeping(thread.native_id or 0))
        assert iterator_ends._processor_of(thread.native_id or 0) >= 0
        assert template._is_missed(str(thread.native_id))
    finally:
        go_on.set()


BEGIN = """
import atexit, os, signal, sys, threading, time
from patched_iterators import patched

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)
        print("released", flush=True)

ops = patched()
iterator = ops.OwnedIterator([Slow()])
atexit.register(print, "handler", flush=True)
"""
HANDLERS = """
class Oh(Exception): pass

def oh(*_):
    global raised
    raised += 1
    raise Oh

raised, caught, lost = 0, 0, []
sys.unraisablehook = lambda given: lost.append(repr(given.exc_value))
signal.signal(signal.SIGALRM, oh)
for index in range(2000):
    iterator = ops.OwnedIterator([object()])
    before = raised
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + index % 30))
        del iterator
        until = time.monotonic() + 20
        while raised == before and time.monotonic() < until:
            pass
    except Oh:
        caught += 1
assert raised == caught == 2000 and not lost, (raised, caught, lost[:1])
"""
AT_THE_END = {
    "the process waits for it": ("del iterator; time.sleep(0.1)", 0, "released handler"),
    "what an exit handler drops": ("atexit.register(lambda: globals().pop('iterator') and None)", 0, "released handler"),
    "an exit code": ("del iterator; sys.exit(3)", 3, "released handler"),
    "an exception": ("del iterator; print('oh', flush=True); raise ValueError", 1, "oh released handler"),
    "a thread of the program": (
        "threading.Timer(0.1, lambda: globals().pop('iterator') and None).start()", 0, "released handler",
    ),
    "a signal's exception": (
        "signal.signal(signal.SIGALRM, lambda *_: sys.exit(4)); signal.setitimer(signal.ITIMER_REAL, 0.005)\n"
        "del iterator; time.sleep(60)", 4, "released handler",
    ),
    "exceptions of handlers that run where iterators are dropped": (HANDLERS, 0, "released handler"),
    "a child that goes on": (
        "del iterator\nif not os.fork():\n    new = ops.OwnedIterator([Slow()]); del new; sys.exit(0)\n"
        "print(os.wait()[1], flush=True)", 0, "released released handler 0 handler",
    ),
    "a child that leaves at once": (
        "if not os.fork():\n    del iterator; os._exit(7)\nprint(os.wait()[1] >> 8, flush=True); os._exit(2)", 2, "7",
    ),
    "a child that was forked": (
        "del iterator\nif not os.fork(): sys.exit(0)\nprint(os.wait()[1], flush=True)", 0, "handler 0 released handler",
    ),
    "a task without its peers": (
        "from sdk.runtime import bootstrap\nSlow.__del__ = lambda _, sleep=time.sleep: sleep(600)\n"
        "del iterator; bootstrap.leave_process(5)", 5, "handler",
    ),
}  # fmt: skip


def ended(program: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPO, PROGRAMS)))}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, env=env)


@pytest.mark.full
@pytest.mark.process
@pytest.mark.parametrize("name", AT_THE_END)
def test_at_the_end_of_a_process(name: str) -> None:
    program, code, printed = AT_THE_END[name]
    done = ended(BEGIN + program)
    assert (done.returncode, done.stdout.split()) == (code, printed.split()), done.stderr
    assert "ignored" not in done.stderr


@pytest.mark.process
def test_a_handlers_exception_while_the_end_waits_is_reported_and_the_wait_continues() -> None:
    # The end waits for the iterator by then: half a second.
    late = "signal.signal(signal.SIGALRM, lambda *_: [][0])\nsignal.setitimer(signal.ITIMER_REAL, 0.25)\ndel iterator"
    done = ended(BEGIN + late)
    # Python has no frame left to which it could give the exception.
    assert (done.returncode, done.stdout.split()) == (0, ["released", "handler"])
    assert "IndexError: list index" in done.stderr and "FATAL" not in done.stderr


LAST = """
def others(own=threading.get_native_id(), each=os.listdir, of=os.sched_getscheduler, cpus=os.sched_getaffinity):
    found = set()
    for thread in map(int, each("/proc/self/task")):
        try:
            found |= {(of(thread), len(cpus(thread)))} if thread != own else set()
        except ProcessLookupError:
            pass
    return sorted(found), len(cpus(own))

class Last:
    def __del__(self, others=others, print=print):
        print("last", others(), flush=True)

last = Last()
atexit.register(lambda: print("handler", others(), flush=True))
"""


PYTHONS = """
registry = type("Registry", (), {"size": lambda: 1})
sys.modules["tensorflow.python.ops.script_ops"] = type("Module", (), {"_py_funcs": registry})
"""
FORK = "if os.fork(): os._exit(os.wait()[1] >> 8)\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), (PYTHONS, ""), ("", FORK)], ids=["plain", "functions", "forked"]
)
def test_after_exit_handlers_no_thread_runs_before_the_one_that_ends_iterators_waits(before: str, after: str) -> None:
    forked = after == FORK
    begin = BEGIN.replace("Slow()", "None").replace("ops = patched()", f"ops = patched()\n{before}")
    begin += f"threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n{after}{LAST}"
    done = ended(begin)
    cpus = len(os.sched_getaffinity(0))
    # A child that was forked has none of its parent's iterators and threads.
    at_exit = ([], cpus) if forked else ([(os.SCHED_OTHER, cpus)], cpus)
    at_end = ([], cpus) if forked else ([(os.SCHED_BATCH, 1)], 1)
    expected = [f"handler {at_exit}", "handler", f"last {at_end}"]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr


@pytest.mark.full
@pytest.mark.tensorflow
def test_tensorflow_still_waits_and_the_patch_does_not() -> None:
    """The probe: if it fails because nothing waits, `sdk/runtime/patches/iterator_ends.py` is no longer needed."""
    needs("tensorflow")
    found = {}
    for name in ("as it is", "patched"):
        found[name] = json.loads(python(str(PROGRAMS / "iterator_ends.py"), name).splitlines()[-1])
    for what in ("one device", "mirrored"):
        assert max(found["as it is"][what]) > 0.15, found
        assert min(found["patched"][what]) < 0.1, found
    assert min(found["patched"]["at once"], 2) >= min(found["as it is"]["at once"], 2), found


@pytest.mark.full
@pytest.mark.tensorflow
@pytest.mark.parametrize("workers", [1, 2])
def test_epochs_give_the_same_results_and_each_ends_in_another_thread(workers: int) -> None:
    needs("tensorflow")
    found: dict[str, list[Any]] = {}
    for way in ("unchanged", "patched"):
        run = sdk.submit(PROGRAMS / "ends_of_epochs.py", args=[way], workers=workers)
        assert run.wait(LONG_LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
        lines = [line.text.partition(" ")[2] for line in run.logs() if line.text.startswith("found ")]
        found[way] = [json.loads(line) for line in lines]
        assert len(lines) == workers
    for unchanged, patched in zip(found["unchanged"], found["patched"], strict=True):
        assert patched["results"] == unchanged["results"]
        assert unchanged["released"] == {"in keras": 0, "in all": 0}
        # Three epochs of `fit`, and validation; then three epochs of two loops.
        assert patched["released"]["in keras"] >= 3 and patched["released"]["in all"] >= 9, patched
