"""podlift tensorboard with the real TensorBoard: it serves the files of a program, from a folder and from a bucket."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from foreign import Foreign
from support import LIMIT_S, needs, until

import sdk
from sdk.testing.gcs import podlift_gcs, podlift_gcs_server

needs("tensorflow")
__all__ = ["podlift_gcs", "podlift_gcs_server"]
pytestmark = [pytest.mark.full, pytest.mark.tensorflow]

# tf.summary.scalar needs the package; this has the same bytes.
PROGRAM = """
import tensorflow as tf

import sdk

with tf.io.TFRecordWriter(f"{sdk.context().dirs.tensorboard}/events.out.tfevents.1.here") as file:
    file.write(tf.compat.v1.Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
    for step in range(3):
        value = tf.compat.v1.Summary.Value(tag="loss", simple_value=1 / (step + 1))
        event = tf.compat.v1.Event(wall_time=2.0 + step, step=step, summary=tf.compat.v1.Summary(value=[value]))
        file.write(event.SerializeToString())
"""


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return json.load(answer)


@pytest.mark.parametrize("root", ["folder", "bucket"])
def test_the_scalars_of_a_run_are_served_on_this_machine_until_podlift_ends(root: str, write, tmp_path, mine) -> None:
    foreign = Foreign(tmp_path / "foreign", "tensorboard")
    write("train.py", PROGRAM)
    run = sdk.submit("train.py", root={"folder": str(tmp_path / "root"), "bucket": "gs://mine/podlift"}[root])
    run.result(LIMIT_S)
    said = tmp_path / "said"
    with said.open("w") as output:
        process = foreign.begin("-m", "sdk", "tensorboard", run.url, "--port", "0", output=output.fileno())
    with process:
        try:
            until(lambda: "http://" in said.read_text() or process.poll() is not None, said.read_text)
            url = re.search(r"http://(127\.0\.0\.1|localhost):\d+/", said.read_text())
            assert url is not None, said.read_text()
            tags = f"{url[0]}data/plugin/scalars/tags"
            until(lambda: asked(tags), said.read_text)
            assert {name: list(found) for name, found in asked(tags).items()} == {".": ["loss"]}
            points = asked(f"{url[0]}data/plugin/scalars/scalars?run={quote('.')}&tag=loss")
            assert [(step, round(value, 3)) for _, step, value in points] == [(0, 1.0), (1, 0.5), (2, 0.333)]
            (child,) = psutil.Process(process.pid).children()
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(LIMIT_S) == 130
            assert not child.is_running()
        finally:
            process.terminate()
    assert "TensorBoard has ended. The runs are not affected." in said.read_text()
