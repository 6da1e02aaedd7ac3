"""The program for a TPU runs unmodified in local mode, and gives the numbers of one device with the same global batch."""

import json
from pathlib import Path

import pytest
from support import PROGRAMS, REPO, FakeClock, heard, made, needs, python

import sdk
from sdk.errors import InputError
from sdk.hardware import accelerators
from sdk.job.payload import Payload
from sdk.runtime.patches import devices
from sdk.runtime.tpu import host

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.tensorflow
needs("tensorflow")

SCRIPT = PROGRAMS / "tpu_stand_in.py"
JOBS = REPO / "jobs"
KINDS = [
    pytest.param(("v5e-4", "local", 2, [2, 1, 1, 1]), id="2 of v5e-4"),
    pytest.param(("v5e-4", "local", 4, [2, 2, 1, 1]), marks=pytest.mark.full),
    pytest.param(("v5e-8", "", 8, [2, 4, 1, 1]), marks=pytest.mark.full),
    pytest.param(("v2-8", "by its name", 8, [2, 2, 1, 2]), marks=pytest.mark.full),
    pytest.param(("v5e-1", "None", 1, [1, 1, 1, 1]), marks=pytest.mark.full),
]


def assert_close(mine, theirs):
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind[0])
def trained(request, tmp_path_factory):
    accelerator, name, replicas, mesh = request.param
    job = sdk.Job(SCRIPT, args=[name], resources=sdk.Resources(accelerator=accelerator))
    with pytest.MonkeyPatch.context() as shell:
        shell.setenv("PODLIFT_TPU_REPLICAS", "2" if replicas == 2 else "")
        run = sdk.submit(job, root=tmp_path_factory.mktemp("t"))
    seen = json.loads(Path(run.result(500).model_dir, "seen.json").read_text())
    return seen, replicas, mesh, "\n".join(line.text for line in run.logs(task="chief-0"))


@pytest.mark.fidelity("tpu-devices", "local")
def test_devices_and_topology_equal_the_ones_of_the_tpu(trained):
    seen, replicas, mesh, _ = trained
    assert seen["devices"] == {
        "listed": [f"/device:TPU:{core}" for core in range(replicas)],
        "accelerators": {"TPU": replicas},
        "cores": [replicas, 1, replicas],
        "mesh": mesh,
    }
    assert seen["is"] == [True, replicas, 1]
    assert seen["old"] == [True, replicas]


def test_the_log_names_the_stand_in_and_gives_advice_for_a_tpu(trained):
    assert "is a stand-in here" in trained[3]
    assert trained[3].count("compile(steps_per_execution=...)") == 1


@pytest.mark.shows("A program for an a100:4 or a v5e-8 runs on stand-ins")
@pytest.mark.parametrize("how", ["steps", "executions"])
def test_fit_evaluate_and_predict_give_the_numbers_of_one_device(trained, how):
    one, replicas = trained[0]["fit"]["one device"], trained[0]["fit"][how]
    assert_close(*([each["history"][name] for name in ("loss", "mae")] for each in (replicas, one)))
    assert_close([replicas["evaluate"], replicas["predict"]], [one["evaluate"], one["predict"]])
    assert_close(replicas["weights"], one["weights"])


def test_a_loop_of_several_steps_in_one_function_counts_and_writes_like_one_device(trained):
    one, replicas = trained[0]["loop"]["one device"], trained[0]["loop"]["replicas"]
    assert one["steps"] == replicas["steps"] == 5
    assert one["summaries"] == replicas["summaries"] == 5, "the first replica writes them"
    assert_close(replicas["weights"], one["weights"])


def test_replicas_exchange_their_values(trained):
    seen, replicas = trained[0]["exchanged"], trained[1]
    numbers = [float(replica) for replica in range(replicas)]
    total, mean, gathered, whole = seen["local"]
    assert total == [[sum(numbers)]] * replicas
    assert mean == [[sum(numbers) / replicas]] * replicas
    assert gathered == whole == [numbers] * replicas
    assert seen["gather"] == numbers
    assert seen["reduce"] == sum(numbers)


def test_an_operation_that_no_stand_in_can_do_is_refused_with_the_alternative(trained):
    seen, replicas = trained[0]["refused"], trained[1]
    *adding, embedding, elsewhere, subscript, job = seen
    if replicas > 1:
        assert "strategy.scope()" in adding[0]
        assert "Received: float64" in adding[1]
    assert "keras.layers.Embedding" in embedding
    assert "somebody-elses" in elsewhere
    assert "TPUClusterResolver(tpu='local')" in elsewhere
    # So they do on a TPU VM.
    assert subscript.startswith("TypeError: A ClusterSpec is not subscriptable")
    assert job.startswith("KeyError: ") and "'worker' is not a job" in job
    assert all("the same line raises there" in said for said in (subscript, job))


def payload(**more):
    return Payload(
        run_id="r", run_url="/r", attempt=1, kind="script", target="t.py", function="", argv=[], kwargs={}, bundle="b",
        digest="d", roots=[], tasks=["chief-0"], writes="chief", limits=sdk.Limits(exit_wait_s=1),
        checkpoints=sdk.Checkpoints(), **more,
    )  # fmt: skip


def test_only_local_mode_and_the_emulator_have_a_stand_in():
    def kinds(environ, **more):
        return [patch.name for patch in devices.tpu_patches(payload(**more), environ)]

    assert kinds({}) == []
    assert kinds({}, tpu="v5e-8", stand_in=True)[0] == "tpu-stand-in"
    assert kinds({"PODLIFT_EMULATOR": "http://127.0.0.1:1"}, tpu="v5e-8")[0] == "tpu-stand-in"
    assert kinds({}, tpu="v5e-8")[0] == "tpu-host"


@pytest.mark.parametrize(("asked", "near"), [("two", 8), ("9", 8), ("0", 1)])
def test_a_number_of_replicas_that_there_is_not_is_refused_when_it_is_planned(tmp_path, monkeypatch, asked, near):
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.setenv("PODLIFT_TPU_REPLICAS", asked)
    with pytest.raises(
        InputError, match=rf"v5e-8: 1 to 8\. Received: '{asked}'\. Nearest: PODLIFT_TPU_REPLICAS={near}"
    ):
        sdk.plan(str(tmp_path / "train.py"), accelerator="v5e-8", root=tmp_path)
    assert sdk.plan(str(tmp_path / "train.py"), root=tmp_path)


def test_several_tasks_on_tpus_are_refused_here_as_they_are_on_vertex_ai(tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    with pytest.raises(InputError, match=r"exactly one task, .* Received: workers=2\. Nearest: workers=1\."):
        sdk.plan(str(tmp_path / "train.py"), accelerator="v5e-8", workers=2, root=tmp_path)


def test_a_host_of_v5e_gets_variables_of_its_chips_and_a_cache_and_keeps_the_jobs(tmp_path):
    environ = {}
    host.set_variables(accelerators.row("v5e-8"), environ, str(tmp_path))
    assert environ["NEXT_PLUGGABLE_DEVICE_USE_C_API"] == "true"
    assert environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"].endswith("libtpu.so")
    assert environ["TF_XLA_FLAGS"] == f"--tf_xla_persistent_cache_directory={tmp_path}/xla"
    assert (tmp_path / "xla").is_dir()
    mine = {"TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=/mine", "NEXT_PLUGGABLE_DEVICE_USE_C_API": "false"}
    host.set_variables(accelerators.row("v5e-8"), changed := dict(mine), str(tmp_path))
    assert changed == {**environ, **mine}


def test_an_emulated_machine_has_no_library_of_chips_to_load():
    environ = {**dict(accelerators.row("v5e-8").env), "PODLIFT_EMULATOR": "http://127.0.0.1:1"}
    devices.prepare(payload(tpu="v5e-8"), environ)
    assert environ == {"PODLIFT_EMULATOR": "http://127.0.0.1:1"}


# What Vertex AI tells a task on a TPU, and what TensorFlow makes of the names of resolvers, without and with the patch.
RESOLVERS = """
import json, os, sys
sys.modules["googleapiclient"] = None  # images do not have it
os.environ["TPU_CONFIG"] = json.dumps({"project": "tenant-tp", "zone": "us-central1-b", "tpu_node_name": "node-7"})
import tensorflow as tf
from sdk.runtime.patches import devices, install
from sdk.job.payload import Payload
names = {"nothing": [], "None": [None], "empty": [""], "local": ["local"], "its name": ["node-7"], "another": ["node-8"]}
def resolved():
    found = {}
    for name, given in {**names, "an address": ["grpc://10.0.0.2:8470"]}.items():
        try:
            made = tf.distribute.cluster_resolver.TPUClusterResolver(*given)
            found[name] = [made._tpu, made.cluster_spec().as_dict()]
        except Exception as error:
            found[name] = str(error).partition(".")[0]
    return found
alone = resolved()
install(devices.tpu_patches(Payload.from_json(sys.argv[1]), os.environ))
print(json.dumps([alone, resolved()]))
"""


@pytest.mark.full
def test_a_resolver_without_a_name_means_the_machines_tpu_as_on_the_stand_in():
    alone, found = json.loads(python("-c", RESOLVERS, payload(tpu="v3-8").to_json()).splitlines()[-1])
    asks_an_api = "Missing runtime dependency on the Google API client"
    assert {alone[name] for name in ("nothing", "None", "empty")} == {asks_an_api}
    for name in ("another", "an address"):
        assert found.pop(name) == alone[name], "that of another machine is TensorFlow's matter"
    assert found == {name: ["local", {}] for name in ("nothing", "None", "empty", "local", "its name")}


def test_a_tpu_that_comes_late_is_waited_for_and_one_that_never_comes_is_named():
    clock, lines = FakeClock(0.0), heard()
    assert host.wait(clock, lambda: ["/dev/accel0"] if clock.time >= 5 else [])
    assert (clock.time, len(lines)) == (5, 1)
    assert not host.wait(clock, lambda: [])
    assert clock.time == 5 + host.WAIT_S
    assert "/dev/accel" in lines[-1]


@pytest.mark.full
@pytest.mark.fidelity("tpu-devices", "emulator")
def test_a_job_for_a_tpu_asks_for_its_machine_and_trains_on_the_stand_in(podlift_vertex):
    job = sdk.Job(JOBS / "digits" / "train.py", args=["--epochs", "1"], resources=sdk.Resources(accelerator="v5e-8"))
    run = sdk.submit(job, backend=podlift_vertex.backend())
    assert run.result(500).metrics["val_accuracy"] > 0.5
    (asked,) = made(podlift_vertex)
    (pool,) = asked.job_spec.worker_pool_specs
    machine = pool.machine_spec
    assert (pool.replica_count, machine.machine_type, machine.tpu_topology) == (1, "ct5lp-hightpu-8t", "2x4")
    assert "v5e-8 is a stand-in here: 8 logical CPU devices" in "\n".join(line.text for line in run.logs())


@pytest.mark.full
def test_char_lm_learns_on_four_replicas(tmp_path):
    small = {"steps": 20, "per-replica": 2, "characters": 60000, "length": 32, "width": 32, "blocks": 1}
    args = [word for name, value in small.items() for word in (f"--{name}", value)]
    job = sdk.Job(JOBS / "char_lm" / "train.py", args=args, resources=sdk.Resources(accelerator="v5e-4"))
    run = sdk.submit(job, root=tmp_path)
    assert run.result(500).metrics["val_loss"] < run.metrics()[0]["val_loss"]
