"""Planning goes one way: the steps that decide read nothing, and the mistakes of all others are one error."""

from __future__ import annotations

import builtins
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import input_error

import sdk
from sdk.errors import Problems
from sdk.job.payload import Drill
from sdk.planning.decide import decide
from sdk.planning.look import look
from sdk.planning.pack import pack
from sdk.planning.prepare import planned_again
from sdk.planning.settings.merge import Destination, gather
from sdk.planning.validate import validate

READS = [
    (os, "stat lstat open listdir scandir readlink getcwd access"),
    (builtins, "open"),
    (socket.socket, "connect"),
    (socket, "getaddrinfo"),
    (time, "time monotonic"),
]


@contextmanager
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail where this thread reads. Servers of other tests run in other threads of the process."""
    here = threading.get_ident()

    def refusing(read: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: object, **keywords: object) -> Any:
            if threading.get_ident() == here:
                pytest.fail(f"a pure step reads: {args}")
            return read(*args, **keywords)

        return called

    with monkeypatch.context() as patched:
        for holder, names in READS:
            for name in names.split():
                patched.setattr(holder, name, refusing(getattr(holder, name)))
        yield


def test_a_read_of_this_thread_is_refused_and_of_another_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor() as threads, nothing_is_read(monkeypatch):
        assert threads.submit(os.listdir, "/").result()
        with pytest.raises(pytest.fail.Exception, match="a pure step reads"):
            os.listdir("/")


@pytest.mark.parametrize(
    "target",
    [
        Destination(backend="local"),
        Destination(backend="vertex", root="gs://bucket/runs"),
        Destination(backend="ray", root="gs://bucket/runs"),
    ],
    ids=lambda target: target.backend,
)
def test_validation_and_decisions_read_no_file(target: Destination, write, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = str(write("train.py", "import keras"))
    given = {"workers": 2, "accelerator": "t4", "inputs": {"a": entry} if target.backend == "local" else {}}
    problems = Problems()
    settings = gather(entry, given, target, {}, problems)
    validate(settings, {}, Problems())  # an import reads files
    with nothing_is_read(monkeypatch):
        wanted = validate(settings, {}, problems)
    world = look(wanted, {"HOME": str(Path(entry).parent)}, problems)
    packed = pack(wanted, world, {}, {})
    decide(wanted, world, packed, "digits-abcdef", starting=False)
    with nothing_is_read(monkeypatch):
        made = decide(wanted, world, packed, "digits-abcdef", starting=False)
    assert (problems.messages, made.run_id, len(made.tasks)) == ([], "digits-abcdef", 2)


def test_the_mistakes_of_all_steps_are_one_error(write) -> None:
    write("train.py", "import nowhere_to_be_found")
    about = {"inputs": {"images": "gone"}, "root": "train.py", "code_requirements": "gone.txt"}
    with input_error("workers", "name", "root", "inputs.images", "gone.txt", "nowhere_to_be_found"):
        sdk.plan("train.py", workers=0, name="A", **about)


def test_the_current_code_of_a_run_is_all_that_changes(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("train.py", "print(1)")
    write("data.txt", "1")
    monkeypatch.setenv("TOKEN", "x")
    env = {"TOKEN": sdk.FromCaller(), "KEY": sdk.Secret("projects/p/secrets/s")}
    monkeypatch.setenv("KEY", "x")
    made = replace(sdk.plan("train.py", inputs={"data": "data.txt"}, env=env), fired=True, drill=Drill(seed=3))
    write("podlift.toml", 'workers = 0\nmodel = "other"\n[local]\nnetwork = "isolated"\n')
    write("train.py", "print(2)")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    again = planned_again(made, os.environ)
    assert again.code.digest != made.code.digest
    assert replace(again, code=made.code, findings=made.findings) == made
