"""Plans for Kubernetes: the objects, which its own schemas accept, and the refusals before any request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import full_only

import sdk
from sdk import backends
from sdk.backends.kubernetes import answers, client
from sdk.cli import app
from sdk.errors import InputError, PodliftError
from sdk.job.plan import Plan

EVERYTHING: dict[str, Any] = {
    "workers": 2,
    "accelerator": "l4:2",
    "timeout": "2h",
    "kubernetes_context": "gke_project_zone_name",
    "kubernetes_namespace": "training",
    "kubernetes_cpu": "4",
    "kubernetes_memory": "16Gi",
    "kubernetes_queue": "gpus",
    "kubernetes_service_account": "trainer",
    "kubernetes_image_pull_secrets": ["registry"],
    "kubernetes_tolerations": ["dedicated=training:NoSchedule", "spare"],
    "kubernetes_node_selector": {"pool": "training"},
    "env": {"LEVEL": "$(HOME)", "TOKEN_OF_MINE": sdk.FromCaller()},
    "kubernetes_raw": {"spec": {"template": {"spec": {"priorityClassName": "low"}}}},
}
RELABELED = {"spec": {"template": {"metadata": {"labels": {"podlift-run": "x"}}}}}
CASES: dict[str, dict[str, Any]] = {
    "two workers": {"workers": 2},
    "everything": EVERYTHING,
    "a TPU": {"accelerator": "v5e-4"},
    "servers and an evaluator": {"workers": 2, "ps": 1, "evaluator": True, "timeout": "1h"},
}


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN_OF_MINE", "hidden-from-plans")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def _write_kubeconfig(path: Path, user: Any = None, server: str = "") -> None:
    about = {"cluster": "c", "namespace": "team", **({"user": "u"} if user else {})}
    config = {
        "current-context": "mine",
        "contexts": [{"name": "mine", "context": about}],
        "clusters": [{"name": "c", "cluster": {"server": server or "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(json.dumps(config))


def planned(**settings: Any) -> Plan:
    given = {"kubernetes_image": "tensorflow/tensorflow:2.20.0", "root": "gs://bucket/p", **settings}
    return sdk.plan("train.py", backend="kubernetes", **given)


def rendered(**settings: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(backends.load("kubernetes").render(planned(**settings)).body))
    return body


def jobs_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    if body["kind"] == "Job":
        return [body]
    specs = [part["template"]["spec"] for part in body["spec"]["replicatedJobs"]]
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec} for spec in specs]


@pytest.mark.parametrize("version", ["1.31", "1.37", *map(full_only, ["1.32", "1.33", "1.34", "1.35", "1.36"])])
@pytest.mark.parametrize("case", CASES)
def test_the_schemas_of_kubernetes_accept_each_job(case: str, version: str) -> None:
    validation = pytest.importorskip("kubernetes_validate")
    for job in jobs_of(rendered(**CASES[case])):
        validation.validate(job, version, strict=True)


def test_the_models_of_jobset_know_each_field_of_a_jobset() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    body = rendered(**CASES["servers and an evaluator"])
    assert models.JobsetV1alpha2JobSet.from_dict(body).to_dict() == body
    assert [part["name"] for part in body["spec"]["replicatedJobs"]] == ["chief", "worker", "ps", "evaluator"]


@pytest.mark.parametrize("case", CASES)
def test_a_pod_of_each_role_meets_the_restricted_pod_security_standard(case: str) -> None:
    for job in jobs_of(rendered(**CASES[case])):
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container["securityContext"]
        assert (own["allowPrivilegeEscalation"], own["capabilities"]) == (False, {"drop": ["ALL"]})
        assert own["readOnlyRootFilesystem"]
        assert not any("hostPath" in volume for volume in pod["volumes"])


def test_hardware_selects_nodes_by_the_labels_of_gke_and_by_devices_elsewhere() -> None:
    gke = rendered(**EVERYTHING)["spec"]["template"]["spec"]
    assert gke["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4", "pool": "training"}
    plain = rendered(accelerator="l4:2")["spec"]["template"]["spec"]
    assert "nodeSelector" not in plain
    for pod in (gke, plain):
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    tpu = rendered(accelerator="v5e-4")["spec"]["template"]["spec"]
    labels = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x2"}
    assert tpu["nodeSelector"] == {f"cloud.google.com/gke-tpu-{name}": value for name, value in labels.items()}
    assert tpu["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}


def test_a_gpu_whose_name_on_gke_is_unknown_is_a_warning_unless_a_selector_names_it() -> None:
    label = "cloud.google.com/gke-accelerator"
    settings = {"accelerator": "gb200:4", "kubernetes_context": "gke_project_zone_name"}
    said = [finding.message for finding in planned(**settings).findings if label in finding.message]
    assert said == [
        "podlift does not know GKE's name of gb200:4, so the pods may get nodes with other GPUs. "
        f"Next: --kubernetes-node-selector {label}=NAME."
    ]
    named = planned(**settings, kubernetes_node_selector={label: "nvidia-gb200"})
    assert not any(label in finding.message for finding in named.findings)


def test_values_of_this_shell_come_from_a_secret_and_others_are_not_expanded() -> None:
    body = rendered(**EVERYTHING)
    env = {entry["name"]: entry for entry in body["spec"]["template"]["spec"]["containers"][0]["env"]}
    wanted = {"name": body["metadata"]["name"], "key": "TOKEN_OF_MINE"}
    assert env["TOKEN_OF_MINE"]["valueFrom"]["secretKeyRef"] == wanted
    assert env["LEVEL"]["value"] == "$$(HOME)"
    assert "hidden-from-plans" not in json.dumps(body)


def test_the_objects_have_the_deadlines_and_the_ends_of_a_run() -> None:
    spec = rendered(workers=2, timeout="2h", limit_grace="60s")["spec"]
    assert spec["activeDeadlineSeconds"] == 7200 + 86400, "the agents keep the limit; nodes may take a day"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 60
    assert spec["ttlSecondsAfterFinished"] == 86400
    # The first task decides, and only final codes fail the job.
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    ignored, disrupted, final = spec["podFailurePolicy"]["rules"]
    assert (ignored["action"], ignored["onExitCodes"]["values"]) == ("Ignore", [134])
    assert (disrupted["action"], disrupted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    codes = {"containerName": "task", "operator": "NotIn", "values": [134, 137, 143]}
    assert (final["action"], final["onExitCodes"]) == ("FailJob", codes)


def test_a_container_that_a_mesh_adds_is_not_taken_for_the_task() -> None:
    names = {"istio-proxy": {"running": {}}, "task": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    statuses = [{"name": name, "state": state} for name, state in names.items()]
    pod = client._pod({"metadata": {"name": "x"}, "status": {"containerStatuses": statuses}})
    assert (pod.code, pod.reason) == (137, "OOMKilled")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accelerator": "v5e-16"}, "on a TPU v5e of one machine .* Nearest: accelerator='v5e-8'"),
        ({"accelerator": "v2-8"}, "trains on CPUs, on NVIDIA GPUs"),
        ({"root": "/mnt/training"}, "pods do not see the folder '/mnt/training' .* --kubernetes-claim CLAIM:FOLDER"),
        ({"root": "/mnt/x", "kubernetes_claim": "c:/mnt/tr"}, "not in the volume.*--root /mnt/tr/podlift"),
        ({"name": "n" * 40}, "too long for the names of its pods.*at most 33 characters"),
        ({"kubernetes_claim": "training"}, "must be CLAIM:FOLDER"),
        ({"kubernetes_memory": "16 GB"}, "must be a quantity of Kubernetes"),
        ({"kubernetes_tolerations": ["a:Sometimes"]}, "KEY=VALUE:EFFECT"),
        ({"kubernetes_raw": {"spec": {"x": {"API_KEY": "abcdefgh"}}}}, "API_KEY looks like"),
        ({"kubernetes_raw": {"metadata": {"name": "x"}}}, r"finds its run. Received: metadata\.name\."),
        ({"kubernetes_raw": {"metadata": {"labels": None}}}, r"finds its run. Received: metadata\.labels\."),
        ({"kubernetes_raw": RELABELED}, r"its run. Received: spec\.template\.metadata\.labels\.podlift-run\."),
    ],
)
def test_a_job_that_cannot_run_on_kubernetes_is_refused_with_the_next_step(settings, message) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        planned(**settings)


def test_a_raw_label_and_annotation_of_another_tool_are_merged() -> None:
    body = rendered(kubernetes_raw={"metadata": {"labels": {"team": "x"}, "annotations": {"a": "b"}}})
    assert (body["metadata"]["labels"]["team"], body["metadata"]["annotations"]) == ("x", {"a": "b"})
    assert body["metadata"]["labels"]["podlift-run"]


def stored(folder: Path, name: str) -> int:
    """Return the exit code of the command that stores a run and writes its objects into a file."""
    words = f"submit train.py --backend kubernetes --root {folder}/v/p --kubernetes-claim c:{folder}/v --no-start"
    return app.run([*words.split(), "--kubernetes-image", "i", "-o", name])


def test_a_run_is_stored_without_a_kubeconfig(tmp_path: Path, capfd) -> None:
    assert stored(tmp_path, "job.yaml") == 0
    shown = capfd.readouterr()
    assert "There is no usable kubeconfig" in " ".join(shown.err.split())
    assert sdk.attach(shown.out.strip()).plan.root.endswith(str(tmp_path / "v" / "p"))
    assert "kind: Job" in Path("job.yaml").read_text()


def test_root_reads_that_the_pods_are_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"root": "/mnt/training/p", "kubernetes_claim": "c:/mnt/training"}
    for user, warned, pods in ((0, True, 1000), (1234, False, 1234)):
        monkeypatch.setattr("os.getuid", lambda user=user: user)
        assert ("the pods run as user 1000" in " ".join(str(planned(**where)).split())) is warned
        assert rendered(**where)["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == pods


def test_a_kubeconfig_of_several_files_is_refused_with_the_command_that_merges_them(monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "a:b")
    with pytest.raises(InputError, match=r"names several files.*kubectl config view --flatten"):
        sdk.submit("train.py", backend=sdk.Kubernetes(image="i"), root="gs://bucket/p")


def test_an_image_without_python_is_a_sentence() -> None:
    said = 'runc create failed: exec: "python3": executable file not found in $PATH: unknown'
    pod = client.PodState(name="x-0", phase="Failed", code=128, reason="StartError", message=said)
    answer = answers.of_ended(client.KubernetesJob(id="x", status="Failed", pods=(pod,)))
    assert answer.end.failure.message.startswith("The image has no python3. Next: --kubernetes-image")
    assert answer.end.failure.traceback == said


@pytest.mark.parametrize("name", ["job.txt", "job.json", "folder.yaml", "mine.yaml"])
def test_objects_are_written_to_no_folder_and_no_file_of_another_kind(name: str, tmp_path: Path, capfd) -> None:
    Path("folder.yaml").mkdir()
    Path("mine.yaml").write_text("mine: 1")
    _write_kubeconfig(tmp_path / "none")
    assert stored(tmp_path, name) == 2
    assert "The output" in capfd.readouterr().err
    assert not (tmp_path / "v").exists()
    assert Path("mine.yaml").read_text() == "mine: 1"


def test_a_manifest_names_the_cluster_and_namespace_for_kubectl(tmp_path: Path) -> None:
    _write_kubeconfig(tmp_path / "none")
    plan = planned(env={"TOKEN_OF_MINE": sdk.FromCaller()})
    service = backends.load("kubernetes").services.manifests
    assert service.how_to_start(plan, "job.yaml") == "kubectl --context=mine --namespace=team apply -f job.yaml"
    assert "It needs: kubectl --context=mine --namespace=team create secret" in service.manifest(plan)


def test_a_plan_without_settings_shows_the_missing_ones_and_a_start_refuses_it(monkeypatch) -> None:
    monkeypatch.delenv("PODLIFT_ROOT", raising=False)
    plan = sdk.plan("train.py", backend="kubernetes")
    text = str(plan)
    for missing in ("No image is configured", "No root is configured", "There is no usable kubeconfig"):
        assert missing in text
    with pytest.raises(InputError, match="No image is configured"):
        sdk.submit("train.py", backend="kubernetes")


def test_the_kubeconfig_gives_context_and_namespace_to_the_plan(tmp_path: Path) -> None:
    _write_kubeconfig(tmp_path / "none")
    target = planned().target
    assert (target.context, target.namespace) == ("mine", "team")
    with pytest.raises(InputError, match=r"no such context.*'mime'.*Did you mean.*'mine'"):
        sdk.submit("train.py", backend=sdk.Kubernetes(context="mime", image="i"), root="gs://bucket/p")


@pytest.mark.parametrize("text", ["", "[]", "a: [", "\x00", "clusters: []", "contexts: [1]\nclusters: [{name: c}]"])
def test_a_kubeconfig_that_is_none_is_a_sentence_in_the_plan(text: str, tmp_path: Path) -> None:
    (tmp_path / "none").write_text(text)
    assert "There is no usable kubeconfig" in str(planned())


@pytest.mark.process
@pytest.mark.parametrize(
    ("user", "server", "message"),
    [
        ({"exec": {"command": "none-such", "apiVersion": "client.authentication.k8s.io/v1beta1"}}, "", "none-such"),
        (None, "http://[::1", "cannot be used"),
        (None, "http://127.0.0.1:1", "does not answer"),
    ],
)
def test_a_server_or_credentials_that_cannot_be_used_are_a_sentence(user, server, message, tmp_path: Path) -> None:
    _write_kubeconfig(tmp_path / "none", user, server)
    with pytest.raises(PodliftError, match=message):
        client.Cluster(sdk.Kubernetes(image="i")).get("Job", "x", within_s=0.0)
