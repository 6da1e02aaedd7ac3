"""Runs on a cluster with processes as pods: evictions, secrets, queues, reasons of a wait, and objects left after a job."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import LONG_LIMIT_S, REPO, TRAINING_S, files_with, heard, until

import sdk
from sdk import backends
from sdk.backends.job_run import RejectedError
from sdk.backends.kubernetes.client import Cluster
from sdk.cli import app
from sdk.errors import InputError, MissingError, PodliftError
from sdk.status import Reason, State
from sdk.testing.backend import BackendContract
from sdk.testing.kubernetes import Fault, KubernetesCluster

pytestmark = pytest.mark.process
ATTEMPTS = """
import os, pathlib, time
print("attempt", os.environ["PODLIFT_ATTEMPT"], "with", os.environ.get("TOKEN_OF_MINE"), flush=True)
if os.environ["PODLIFT_ATTEMPT"] == "1":
    time.sleep(600)
"""
EVALUATES = """
import time
import sdk
if sdk.context().task == "evaluator-0":
    print("evaluates", flush=True)
    time.sleep(600)
"""
EVALUATED = """
import pathlib
import sdk
ctx = sdk.context()
pathlib.Path(ctx.dirs.model).mkdir(parents=True)
pathlib.Path(ctx.dirs.model, "weights").write_text("0.5")
ctx.report({"loss": 0.5}, step=1)
"""
MEASURE = """
import time
def measure(model, data):
    print("measures", flush=True)
    time.sleep(600)
"""
COPIED = {"TOKEN_OF_MINE": sdk.FromCaller()}
DIGITS = "digits_weights:main"
SLOW = {"epochs": 6, "slow_s": 0.1}


STARTED: list[sdk.Run] = []
NO_CPU = "0/3 nodes are available: 3 Insufficient cpu."


@pytest.fixture(autouse=True)
def _project(cluster: KubernetesCluster, write, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project with a value of this shell; runs that go on at the end are cancelled."""
    monkeypatch.setenv("TOKEN_OF_MINE", "t0ken-of-mine")
    STARTED.clear()
    yield
    for run in STARTED:
        if not run.status().state.terminal:
            run.cancel(grace_s=0)
            assert run.wait(60).state is State.CANCELLED


def submitted(cluster: KubernetesCluster, text: str, settings: Any = None, **more: Any) -> sdk.Run:
    Path("train.py").write_text(text)
    STARTED.append(sdk.submit("train.py", backend=cluster.backend(**(settings or {})), root=cluster.root, **more))
    return STARTED[-1]


def says(run: sdk.Run, text: str) -> bool:
    """Whether the explanation of a run has this text, without its line ends."""
    return text in " ".join(str(run.why()).split())


def until_all_print(cluster: KubernetesCluster, run: sdk.Run) -> None:
    def printed() -> bool:
        return all(attempts_of(run, task) for task in run.plan.tasks)

    until(printed, lambda: (run.status(), cluster.objects("Pod")))


def jobs_of(cluster: KubernetesCluster, name: str) -> list[dict[str, Any]]:
    return [job for job in cluster.objects("Job") if job["metadata"]["name"].startswith(name)]


def attempts_of(run: sdk.Run, task: str) -> list[str]:
    return [line.text for line in run.logs(task=task) if line.text.startswith("attempt")]


def steps_of(run: sdk.Run) -> int:
    progress = run.progress()
    return 0 if progress is None else progress.step


def pods_of(cluster: KubernetesCluster, run: sdk.Run) -> list[dict[str, Any]]:
    return [pod for pod in cluster.objects("Pod") if pod["metadata"]["name"].startswith(run.id)]


def names_of(cluster: KubernetesCluster, run: sdk.Run) -> list[str]:
    """Return the kinds and names of the objects of a run on the cluster."""
    kinds = ("Job", "JobSet", "Pod", "Secret", "Service", "ConfigMap")
    found = [(kind, item["metadata"]["name"]) for kind in kinds for item in cluster.objects(kind)]
    return [f"{kind} {name}" for kind, name in found if name.startswith(run.id)]


@pytest.mark.shows("`--backend kubernetes` runs it as a Job")
def test_an_evicted_run_goes_on_with_its_secret_in_another_pod(cluster: KubernetesCluster) -> None:
    run = submitted(cluster, ATTEMPTS, workers=2, env=COPIED, retry_preemptions=2)
    until_all_print(cluster, run)
    cluster.evict(cluster.pod_of(1))
    status = run.wait(LONG_LIMIT_S)
    assert (status.state, status.attempts) == (State.SUCCEEDED, 2), run.why()
    for task in run.plan.tasks:
        assert attempts_of(run, task) == [f"attempt {number} with ***" for number in (1, 2)]
    indices = [pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods_of(cluster, run)]
    assert indices.count("1") == 2
    assert files_with("t0ken-of-mine", cluster.root) == []


@pytest.mark.full
def test_the_time_limit_holds_while_an_attempt_waits_for_a_pod(cluster: KubernetesCluster) -> None:
    run = submitted(cluster, ATTEMPTS, workers=2, timeout="30s", retry_preemptions=None)
    until_all_print(cluster, run)
    cluster.unschedulable = NO_CPU
    cluster.evict(cluster.pod_of(1))
    status = run.wait(LONG_LIMIT_S)
    assert (status.state, status.reason) == (State.FAILED, Reason.TIMEOUT), run.why()
    assert status.failure is not None and status.failure.message == "The run took longer than timeout='30s'."


@pytest.mark.full
def test_the_time_limit_holds_in_the_last_phase(cluster: KubernetesCluster) -> None:
    Path("train.py").write_text(EVALUATED)
    Path("quality.py").write_text(MEASURE)
    data = Path(cluster.root, "rows")
    data.parent.mkdir(parents=True, exist_ok=True)
    data.touch()
    gate = sdk.Gate(evaluate="quality:measure", data="test", metric="accuracy")
    limits = sdk.Limits(timeout_s=30.0)
    job = sdk.Job("train.py", inputs={"test": str(data)}, model="digits", gate=gate, limits=limits)
    run = sdk.submit(job, backend=cluster.backend(), root=cluster.root)
    status = run.wait(LONG_LIMIT_S)
    assert (status.state, status.reason) == (State.FAILED, Reason.TIMEOUT), run.why()
    assert [line.text for line in run.logs(task="chief-0")][-1:] == ["measures"]
    assert status.failure is not None and status.failure.message == "The run took longer than timeout='30s'."


def test_why_names_the_reason_of_a_wait_and_a_cancelled_job_leaves_nothing(cluster: KubernetesCluster) -> None:
    cluster.unschedulable = NO_CPU
    run = submitted(cluster, "print(1)", {"cpu": "64"})
    until(lambda: "3 Insufficient cpu" in str(run.why()), run.why)
    assert run.status().reason is Reason.PROVISIONING
    cluster.unschedulable, cluster.bad_image = "", 'Back-off pulling image "podlift/emulated"'
    until(lambda: "cannot be pulled" in str(run.why()), run.why)
    assert "--kubernetes-image-pull-secrets" in str(run.why())
    run.cancel()
    assert run.wait(60).state is State.CANCELLED
    assert names_of(cluster, run) == []


def test_a_queue_holds_a_job_until_it_is_admitted(cluster: KubernetesCluster) -> None:
    run = submitted(cluster, "print(1)", {"queue": "gpus"})
    until(lambda: run.status().reason is Reason.QUEUED, run.status)
    text = str(run.why())
    assert "queue gpus" in text and "insufficient unused quota" in text
    cluster.unschedulable = NO_CPU
    cluster.admit()
    until(lambda: "3 Insufficient cpu" in str(run.why()), run.why)
    cluster.unschedulable = ""
    assert run.wait(LONG_LIMIT_S).state is State.SUCCEEDED
    assert names_of(cluster, run) != [], "a finished job stays for its TTL"


def test_a_quota_that_forbids_pods_is_named(cluster: KubernetesCluster) -> None:
    cluster.quota = "exceeded quota: compute, requested: pods=1, used: pods=10, limited: pods=10"
    run = submitted(cluster, "print(1)")
    until(lambda: says(run, "exceeded quota: compute"), run.why)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("create", "Job", 403, 'User "me" cannot create "jobs"'), "No permission to create jobs.*bind the Role"),
        (Fault("create", "Job", 422, "spec.template.spec.x: unknown field"), "refuses to create jobs.*unknown field"),
        (Fault("create", "Job", 401, "Unauthorized"), "does not accept the credentials.*log in again"),
        (Fault("create", "Job", 403, 'webhook "x" denied the request: no owner'), "refuses to create jobs.*no owner"),
        (Fault("create", "Secret", 403, 'User "me" cannot create "secrets"'), "No permission to create secrets"),
    ],
)
def test_a_refusal_by_the_cluster_is_one_sentence_before_anything_is_written(cluster, fault, message) -> None:
    cluster.faults.append(fault)
    before = sorted(Path(cluster.volume).rglob("runs/*"))
    with pytest.raises(InputError, match=message):
        submitted(cluster, "print(1)", env=COPIED)
    assert sorted(Path(cluster.volume).rglob("runs/*")) == before


def test_a_webhook_without_dry_runs_does_not_keep_a_run_from_its_start(cluster: KubernetesCluster) -> None:
    cluster.unschedulable, lines = "no nodes", heard("backends")
    cluster.faults.append(Fault("create", "Job", 400, 'admission webhook "x" does not support dry run'))
    run = submitted(cluster, "print(1)", env=COPIED)
    assert "The cluster checks the job only when it is created." in " ".join(lines)
    assert f"Job {run.id}-1" in names_of(cluster, run)


def test_a_namespace_a_queue_or_jobset_that_is_not_there_is_named(cluster: KubernetesCluster) -> None:
    with pytest.raises(InputError, match=r"no namespace 'nowhere'.*kubectl create namespace nowhere"):
        submitted(cluster, "print(1)", {"namespace": "nowhere"})
    with pytest.raises(InputError, match=r"no LocalQueue 'nowhere' of Kueue.*kubectl get localqueues"):
        submitted(cluster, "print(1)", {"queue": "nowhere"})
    cluster.jobset_installed = False
    with pytest.raises(InputError, match=r"need JobSet, which this cluster lacks"):
        submitted(cluster, "print(1)", workers=2, ps=1)


def test_a_claim_that_the_pods_cannot_share_and_hardware_that_no_node_has_are_named(cluster: KubernetesCluster) -> None:
    with pytest.raises(InputError, match=r"'single' can be mounted by one node at a time, and the run has 2 tasks"):
        submitted(cluster, "print(1)", {"claim": f"single:{cluster.volume}"}, workers=2)
    with pytest.raises(InputError, match=r"does not see the volume of the claim 'shared'.*no folder '/none/here'"):
        sdk.submit("train.py", backend=cluster.backend(claim="shared:/none/here"), root="/none/here/podlift")
    assert not Path("/none").exists()
    with pytest.raises(InputError, match=r"no claim 'other'.*kubectl get pvc"):
        submitted(cluster, "print(1)", {"claim": f"other:{cluster.volume}"})
    plan = sdk.plan("train.py", backend=cluster.backend(), root=cluster.root, accelerator="l4", online=True)
    assert "No node of the cluster has nvidia.com/gpu now" in str(plan)


def test_a_manifest_is_the_very_object_that_submit_creates(cluster: KubernetesCluster) -> None:
    yaml = pytest.importorskip("yaml")
    cluster.unschedulable = "no nodes"
    Path("train.py").write_text("print(1)")
    plan = sdk.plan("train.py", backend=cluster.backend(), root=cluster.root, workers=2)
    service = backends.load("kubernetes").services.manifests
    offline = yaml.safe_load(service.manifest(plan))
    run = sdk.submit(plan)
    STARTED.append(run)
    (created,) = jobs_of(cluster, run.id)
    del created["spec"]["selector"]  # the server's own
    assert created["spec"] == offline["spec"]


def test_servers_of_busy_apis_are_asked_again_and_no_second_job_is_created(cluster: KubernetesCluster) -> None:
    cluster.unschedulable = "no nodes"
    cluster.faults += [Fault("create", "Job", 429, "slow down", times=2), Fault("get", "Job", 500, "etcd", times=1)]
    run = submitted(cluster, "print(1)")
    assert run.status().state is State.PENDING
    assert names_of(cluster, run).count(f"Job {run.id}-1") == 1


def test_a_run_has_its_secret_if_the_answer_was_lost_and_no_job_if_it_is_refused(cluster, monkeypatch) -> None:
    real, answers = Cluster.create, [PodliftError, RejectedError]
    cluster.unschedulable = "no nodes"
    cluster.faults.append(Fault("get", "Secret", 403, 'User "me" cannot get resource "secrets"'))

    def create(own: Cluster, body: Any, **more: Any) -> Any:
        if body["kind"] == "Secret" and not more:
            if answers.pop() is RejectedError:
                raise RejectedError("No.", 403)
            real(own, body)
        return real(own, body, **more)

    monkeypatch.setattr(Cluster, "create", create)
    with pytest.raises(PodliftError, match="was not started: No"):
        submitted(cluster, "print(1)", env=COPIED, name="refused")
    assert not jobs_of(cluster, "refused")
    run = submitted(cluster, "print(1)", env=COPIED)
    assert names_of(cluster, run)[-1] == f"Secret {run.id}-1"


def test_a_name_that_another_job_has_is_not_taken_for_the_run(cluster: KubernetesCluster) -> None:
    Path("train.py").write_text("print(1)")
    target = sdk.plan("train.py", backend=cluster.backend(), root=cluster.root).target
    other = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "namespaces-1"}, "spec": {"suspend": True}}
    Cluster(target).create(other)
    with pytest.raises(RejectedError, match="has another Job of the name 'namespaces-1'"):
        Cluster(target).create({**other, "metadata": {"name": "namespaces-1", "labels": {"podlift-run": "mine"}}})
    with pytest.raises(MissingError):
        Cluster(target).get("Job", "namespaces-2")
    Cluster(target).delete("Job", "namespaces-1")


def test_a_machine_without_the_context_of_a_run_shows_and_cancels_it(cluster, tmp_path, monkeypatch) -> None:
    run = submitted(cluster, "import time; time.sleep(600)")
    until(lambda: run.status().state is State.RUNNING, run.status)
    (tmp_path / "other").write_text(cluster.kubeconfig.read_text().replace("podlift-test", "other"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "other"))
    there = sdk.attach(run.url)
    assert there.status().state is State.RUNNING
    assert says(there, "no such context")
    there.cancel(grace_s=0)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    assert sdk.attach(run.url).wait(60).state is State.CANCELLED


def test_a_client_without_a_right_reads_which_one_it_lacks(cluster: KubernetesCluster) -> None:
    cluster.unschedulable = "no nodes"
    run = submitted(cluster, "print(1)")
    for verb, kind in (("list", "Pod"), ("delete", "Job")):
        cluster.faults[:] = [Fault(verb, kind, 403, f'User "me" cannot {verb} it', times=999)]
        if verb == "delete":
            run.cancel(grace_s=0)
        until(lambda: says(run, f"No permission to {verb} {kind.lower()}s"), run.why)  # noqa: B023
        assert run.status().reason in (Reason.PREPARING, Reason.PROVISIONING)
    cluster.faults.clear()
    assert run.wait(60).state is State.CANCELLED
    cluster.unschedulable, cluster.quota = "", "exceeded quota"
    run = submitted(cluster, "print(1)")
    cluster.faults[:] = [Fault("list", "Event", 403, 'User "me" cannot list it', times=999)]
    until(lambda: says(run, "No permission to list events"), run.why)


def test_a_submit_that_is_killed_before_its_secret_can_be_resumed(cluster: KubernetesCluster, monkeypatch) -> None:
    real = Cluster.create

    def create(own: Cluster, body: Any, **more: Any) -> Any:
        if body["kind"] == "Secret" and not more:
            raise KeyboardInterrupt
        return real(own, body, **more)

    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(Cluster, "create", create)
        submitted(cluster, "print(1)", env=COPIED, name="killed")
    (job,) = jobs_of(cluster, "killed")
    run = sdk.attach(f"{cluster.root}/runs/{job['metadata']['labels']['podlift-run']}")
    until(lambda: says(run, "podlift cancel and then podlift resume"), run.why)
    run.cancel(grace_s=0)
    assert run.wait(60).state is State.CANCELLED
    run.resume()
    assert run.wait(LONG_LIMIT_S).state is State.SUCCEEDED


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_a_run_that_its_queue_evicts_waits_there_and_goes_on(cluster: KubernetesCluster) -> None:
    run = submitted(cluster, ATTEMPTS, {"queue": "gpus"}, workers=2, retry_preemptions=2)
    until(lambda: run.status().reason is Reason.QUEUED, run.status)
    cluster.admit()
    until_all_print(cluster, run)
    # As Kueue does.
    suspended = ["patch", "job", f"{run.id}-1", "--type=merge", "-p", '{"spec": {"suspend": true}}']
    subprocess.run(["kubectl", *suspended], check=True, timeout=120)
    until(lambda: says(run, "waits for the queue gpus to admit it"), run.why)
    until(lambda: not any(pod["status"]["phase"] == "Running" for pod in pods_of(cluster, run)), run.why)
    cluster.admit()
    status = run.wait(LONG_LIMIT_S)
    assert (status.state, status.attempts) == (State.SUCCEEDED, 2), run.why()


@pytest.mark.full
@pytest.mark.tensorflow
def test_parameter_servers_train_as_a_jobset_and_go_on_after_an_eviction(cluster: KubernetesCluster) -> None:
    program = (REPO / "tests" / "programs" / "parameter_server_fit.py").read_text()
    run = submitted(
        cluster, EVALUATES + program, args=["12"], workers=2, ps=1, evaluator=True, code_keras="legacy",
        checkpoint_every="20steps", retry_preemptions=2,
    )  # fmt: skip
    until(lambda: run.status().saved_step or run.status().state.terminal, run.why, TRAINING_S)
    names = [pod["metadata"]["name"] for pod in pods_of(cluster, run)]
    (server,) = [name for name in names if "-ps-0-" in name]
    cluster.evict(server)
    status = run.wait(TRAINING_S)
    assert (status.state, status.attempts) == (State.SUCCEEDED, 2), run.why()
    assert status.continued_step
    said = {task: [line.text for line in run.logs(task=task)] for task in run.plan.tasks}
    assert set(said) == {"chief-0", "worker-0", "ps-0", "evaluator-0"}
    assert "evaluates" in said["evaluator-0"]
    # A step that was lost on its way back is taken twice.
    epochs = [line for line in said["chief-0"] if line.startswith("epoch ")]
    assert int(epochs[-1].split()[-1]) >= 12 * 20
    losses = [record["loss"] for record in run.metrics()]
    assert losses[-1] < losses[0] / 10
    assert "the weights are on /job:ps/replica:0/task:0" in "\n".join(said["chief-0"])


@pytest.mark.full
def test_the_verdict_needs_neither_job_nor_pods(cluster: KubernetesCluster) -> None:
    run = submitted(cluster, "print(1)")

    def succeeded() -> bool:
        (job,) = jobs_of(cluster, run.id)
        return any(entry["type"] == "Complete" for entry in job.get("status", {}).get("conditions", ()))

    until(succeeded, lambda: cluster.objects("Job"))
    subprocess.run(["kubectl", "delete", "job", f"{run.id}-1"], check=True) if shutil.which("kubectl") else None
    assert sdk.attach(run.url).status().state is State.SUCCEEDED


def releases() -> list[Any]:
    """Return each kubectl beside the one on PATH (Google's SDK has several), and in the folder of the variable KUBECTLS."""
    folders = [Path(shutil.which("kubectl") or "/none").resolve().parent, Path(os.environ.get("KUBECTLS") or "/none")]
    files = {file.name: file for folder in folders for file in sorted(folder.glob("kubectl*")) if file.is_file()}
    for old in ("kubectl.1.20", "kubectl.1.27", "kubectl.1.28"):
        # They ask for the schema in another format, which the test cluster lacks, and do not fit to a server of today.
        files.pop(old, None)
    none = pytest.param("", marks=pytest.mark.skip(reason="kubectl is not installed"))
    return [pytest.param(str(file), id=name) for name, file in files.items()] or [none]


@pytest.mark.full
@pytest.mark.parametrize("kubectl", releases())
def test_kubectl_starts_watches_and_deletes_a_stored_run(cluster: KubernetesCluster, kubectl: str, capfd) -> None:
    def said(*words: str) -> str:
        done = subprocess.run([kubectl, *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    Path("train.py").write_text("print('hello')")
    options = f"--backend kubernetes --root {cluster.root} --kubernetes-image i".split()
    options += ["--kubernetes-claim", f"shared:{cluster.volume}"]
    assert app.run(["submit", "train.py", *options, "--no-start", "-o", "job.yaml"]) == 0
    run = sdk.attach(capfd.readouterr().out.strip())
    job = f"{run.id}-1"
    assert "created (server dry run)" in said("apply", "--dry-run=server", "-f", "job.yaml")
    assert names_of(cluster, run) == []
    words = [kubectl, "get", "pods", "-w", "-l", f"podlift-run={run.id}"]
    watch = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert "created" in said("apply", "-f", "job.yaml")
        assert run.id in said("get", "jobs,pods")
        until(lambda: any("containerStatuses" in pod["status"] for pod in pods_of(cluster, run)), run.why)
        assert "hello" in said("logs", "-f", f"job/{job}")
        assert "condition met" in said("wait", "--for=condition=complete", f"job/{job}", "--timeout=60s")
        described = said("describe", f"job/{job}")
        assert "Pod Template" in described and run.id in described
        assert run.wait(60).state is State.SUCCEEDED
        assert "deleted" in said("delete", f"job/{job}")
        assert names_of(cluster, run) == []
    finally:
        watch.terminate()
        seen = watch.communicate(timeout=60)[0]
    assert seen.count(job) > 2, f"a line for each change of the pod: {seen}"


@pytest.mark.full
@pytest.mark.tensorflow
@pytest.mark.parametrize("notice", [True, False])
def test_digits_on_three_pods_keep_their_weights_when_one_is_lost(cluster: KubernetesCluster, tmp_path, notice) -> None:
    shutil.copy(REPO / "tests" / "programs" / "digits_weights.py", ".")
    settings = {"checkpoint_every": "10steps", "retry_preemptions": 3, "retry_infrastructure": 3}
    there = sdk.submit(DIGITS, args=SLOW, workers=3, backend=cluster.backend(), root=cluster.root, **settings)
    until(lambda: steps_of(there) >= 20 or there.status().state.terminal, there.why, TRAINING_S)
    (cluster.evict if notice else cluster.lose_node)(cluster.pod_of(2))
    status = there.wait(TRAINING_S)
    assert (status.state, status.attempts) == (State.SUCCEEDED, 2), there.why()
    here = sdk.submit(DIGITS, args={**SLOW, "slow_s": 0.0}, workers=3, root=tmp_path / "own", local_cores="all")
    assert there.result(60).value == here.result(TRAINING_S).value


class TestKubernetes(BackendContract):
    name = "kubernetes"

    @pytest.fixture
    def where(self, cluster: KubernetesCluster) -> dict[str, Any]:
        return {"backend": cluster.backend(), "root": cluster.root}
