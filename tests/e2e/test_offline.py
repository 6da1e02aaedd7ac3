"""No credentials, no network: client, supervisor and tasks where nothing but loopback exists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import LIMIT_S

import sdk
from sdk.process import namespaces

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]

# The network as a process sees it. Connecting a datagram socket sends nothing: it fails where there is no route. The
# addresses: one that is reserved for documents, the metadata server of Google's machines, this machine.
LOOK = """
import errno, json, os, socket

def route(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 53))
        except OSError as error:
            return errno.errorcode[error.errno]
    return "found"

def look():
    seen = {address: route(address) for address in ("192.0.2.1", "169.254.169.254", "127.0.0.1")}
    seen["interfaces"] = [name for _, name in socket.if_nameindex()]
    seen["cloud"] = [name for name in os.environ if name.startswith(("GOOGLE", "CLOUDSDK"))]
    return json.dumps({"looked": seen})

"""
OFFLINE = {
    "192.0.2.1": "ENETUNREACH",
    "169.254.169.254": "ENETUNREACH",
    "127.0.0.1": "found",
    "interfaces": ["lo"],
    "cloud": [],
}

CLIENT = """
import sys
from sdk.process import namespaces

namespaces.enter(sys.argv[1], [], isolated=True)
print(look(), flush=True)
os.execv(sys.executable, [sys.executable, "-m", "sdk", *sys.argv[2:]])
"""

PROGRAM = """
import keras
import numpy as np
import sdk

print(look(), flush=True)
with sdk.context().strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((3200, 2), "float32")
model.fit(x, x[:, :1], batch_size=8, epochs=5, validation_split=0.5, verbose=0)
model.save(sdk.context().dirs.model + "/model.keras")
"""


def looked(text: str) -> dict:
    return json.loads(next(line for line in text.splitlines() if line.startswith('{"looked"')))["looked"]


@pytest.mark.full
def test_two_workers_train_to_success_without_a_network_and_without_credentials(tmp_path: Path) -> None:
    refused = namespaces.why_not()
    if refused is not None:
        pytest.skip(f"needs a network namespace, and {refused}")
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    (project / "train.py").write_text(textwrap.dedent(LOOK + PROGRAM))
    words = ["submit", "train.py", "--workers", "2", "--max-steps", "20", "--timeout", "200", "--json"]
    command = [sys.executable, "-c", LOOK + CLIENT, str(tmp_path / "hosts"), *words]
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(Path(sdk.__file__).parent.parent)}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert looked(done.stdout) == OFFLINE, "the client"
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["state"] == "SUCCEEDED"
    assert answer["metrics"]["val_loss"] is not None
    run = sdk.attach(answer["url"])
    assert Path(run.url).is_relative_to(home), "where runs live when nobody says anything"
    assert [record["step"] for record in run.metrics()] == [20]
    import keras

    assert keras.models.load_model(Path(run.result().model_dir, "model.keras")).count_params() == 3
    for task in run.plan.tasks:
        assert looked("\n".join(line.text for line in run.logs(task=task))) == OFFLINE, task
