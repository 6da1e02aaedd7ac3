"""The verb tensorboard: the user's TensorBoard on the logs of runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import typer

from .. import api
from ..errors import InputError
from ..job.layout import RunPaths
from ..process.redirect import start
from . import parameters as p
from .output import EXIT_DETACHED, say

_HOST = "127.0.0.1"
_GRACE_S = 5.0
_INSTALL = "Next: pip install tensorboard. For runs in a bucket it needs TensorFlow: pip install 'podlift[tf]'."


def tensorboard(refs: p.Refs, root: p.Root = None, port: p.Port = 6006) -> None:
    """Start TensorBoard on the logs of runs, and end with it.

    It is the TensorBoard that is installed here, and listens on this machine only.
    """
    runs = {run.id: run for run in (api.attach(ref, root=root) for ref in refs)}
    folders = {run.id: RunPaths(run.url).tensorboard for run in runs.values()}
    command = [*program(), "--host", _HOST, "--port", str(port), *arguments(folders)]
    for name, folder in folders.items():
        say(f"{name}: {folder}")
    try:
        code = _run(command)
    except KeyboardInterrupt:
        say("TensorBoard has ended. The runs are not affected.")
        raise typer.Exit(EXIT_DETACHED) from None
    raise typer.Exit(code)


def _run(command: list[str]) -> int:
    """Return TensorBoard's exit code. A signal that ends this process ends it too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="podlift-tensorboard-") as folder:
        # It reads gs:// by TensorFlow, which does not know the emulator. Its own faster reader never asks another server.
        redirected = start.start(os.environ, folder)
        command = [*command, "--load_fast=false"] if redirected else command
        with subprocess.Popen(command, env={**os.environ, **redirected}) as process:
            try:
                return process.wait()
            finally:
                _end(process)
                signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    # After Ctrl-C, Popen itself waits for a quarter of a second only.
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def program() -> list[str]:
    """Return how TensorBoard is started: the one of this Python, or the one on PATH."""
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    if command := shutil.which("tensorboard"):
        return [command]
    raise InputError(f"TensorBoard is not installed. {_INSTALL}")


def arguments(folders: Mapping[str, str]) -> list[str]:
    if len(folders) == 1:
        return ["--logdir", *folders.values()]
    # They separate the folders, and nothing escapes them.
    for folder in folders.values():
        if "," in folder:
            raise InputError(
                f"TensorBoard cannot compare folders with a comma in their name. Received: {folder!r}. "
                "Next: podlift tensorboard with this run alone."
            )
    return ["--logdir_spec", ",".join(f"{name}:{folder}" for name, folder in folders.items())]
