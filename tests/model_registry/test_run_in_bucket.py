"""A run with a bucket as root: its last phase registers and promotes its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import LIMIT_S, until

import sdk
from sdk.model_registry.models import Model

PROGRAM = """
import pathlib, sdk
context = sdk.context()
folder = pathlib.Path(context.dirs.model.replace("gs://", "/gcs/"))
folder.mkdir(exist_ok=True)
(folder / "model.keras").write_text("trained")
context.report({"accuracy": 0.5}, step=1)
"""


@pytest.mark.parametrize("backend", [pytest.param("local", marks=pytest.mark.full), "vertex"])
def test_a_run_in_a_bucket_is_registered_and_promoted_by_its_last_phase(podlift_vertex, write, backend) -> None:
    write("train.py", PROGRAM)
    write("quality.py", "def measure(folder, data):\n    return {'accuracy': 0.5}\n")
    podlift_vertex.client().bucket(podlift_vertex.bucket).blob("rows.csv").upload_from_string(b"1\n")
    root = f"gs://{podlift_vertex.bucket}/runs"
    run = sdk.submit(
        "train.py",
        backend="local" if backend == "local" else podlift_vertex.backend(bucket=root),
        root=root,
        name="trained",
        inputs={"rows": f"gs://{podlift_vertex.bucket}/rows.csv"},
        model="digits",
        gate_evaluate="quality:measure",
        gate_data="rows",
        gate_metric="accuracy",
    )
    run.result(LIMIT_S)
    registered = run.status().registered
    assert (registered and registered.outcome) == "promoted", registered or run.why()
    champion = Model(root, "digits").champion()
    assert champion.record.run == run.id
    version = sdk.models(root).add(run.url, model="digits")
    assert (version.number, version.model.root, version.record.run_url) == (1, root, run.url), "it is the same"
    assert (dict(version.metrics), version.record.state) == ({"accuracy": 0.5}, "SUCCEEDED")
    assert len(version.record.data["rows"].digest) == 64
    assert Path(version.download("home"), "model.keras").read_text() == "trained"


@pytest.mark.full
def test_a_container_preempted_as_its_program_ends_leaves_the_last_phase_to_the_next(podlift_vertex, write) -> None:
    at_the_end = "import signal, threading\nstopped = threading.Event()\nsignal.signal(15, lambda *_: stopped.set())\n"
    waits = "print('waits', flush=True)\nwhile not stopped.wait(0.05): pass\n"
    write("train.py", at_the_end + PROGRAM.replace("folder = ", f"{waits}folder = "))
    run = sdk.submit("train.py", backend=podlift_vertex.backend(), model="digits", retry_infrastructure=2)
    until(lambda: "waits" in [line.text for line in run.logs()], lambda: run.why())
    assert podlift_vertex.preempt(podlift_vertex._newest_job(run))
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1), run.why()
    assert status.registered is not None and status.registered.version == 1, status.registered
