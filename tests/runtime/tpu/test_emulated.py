"""A job for a TPU on an emulated Vertex AI: it requests the right machine, and CPUs stand in for the TPU."""

import pytest
from support import REPO, made, needs

import sdk
from sdk.testing.vertex import Cloud

needs("tensorflow")

DIGITS = REPO / "jobs" / "digits" / "train.py"


@pytest.mark.full
@pytest.mark.fidelity("tpu-devices", "emulator")
def test_a_job_for_a_tpu_asks_for_its_machine_and_trains_on_the_stand_in(podlift_vertex: Cloud) -> None:
    job = sdk.Job(str(DIGITS), args=["--epochs", "1"], resources=sdk.Resources(accelerator="v5e-8"))
    run = sdk.submit(job, backend=podlift_vertex.backend())
    assert run.result(500).metrics["val_accuracy"] > 0.5
    (asked,) = made(podlift_vertex)
    (pool,) = asked.job_spec.worker_pool_specs
    machine = pool.machine_spec
    assert (pool.replica_count, machine.machine_type, machine.tpu_topology) == (1, "ct5lp-hightpu-8t", "2x4")
    assert "v5e-8 is a stand-in here: 8 logical CPU devices" in "\n".join(line.text for line in run.logs())
