"""Parameter servers and an evaluator, in local mode as on Vertex AI."""

from __future__ import annotations

import json

import pytest
from support import LIMIT_S, PROGRAMS, until

import sdk
from sdk.runtime import context
from sdk.runtime.reporting import Reporter
from sdk.testing import tasks

pytestmark = [pytest.mark.process]


def printed(run: sdk.Run, task: str) -> str:
    return "\n".join(line.text for line in run.logs(task=task))


def test_an_evaluator_knows_its_role_and_comes_to_its_own_end(submit) -> None:
    run = submit("""
        import json, os, pathlib, time
        import sdk

        config, spec = json.loads(os.environ["TF_CONFIG"]), json.loads(os.environ["CLUSTER_SPEC"])
        done = pathlib.Path(sdk.context().dirs.model) / "done"
        if config["task"]["type"] == "evaluator":
            while not done.exists():
                time.sleep(0.01)
            print(json.dumps([config, spec["task"], sorted(spec["cluster"])]))
            raise SystemExit
        done.write_text("")
        """, workers=2, evaluator=True, limit_exit_wait="1h")  # fmt: skip
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    config, task, pools = json.loads(printed(run, "evaluator-0").splitlines()[-1])
    assert (config["task"]["type"], config["task"]["index"]) == ("evaluator", 0)
    assert sorted(config["cluster"]) == ["chief", "worker"], "an evaluator is no part of the cluster"
    assert task == {"type": "workerpool3", "index": 0}
    assert pools == ["workerpool0", "workerpool1", "workerpool3"]


def test_a_job_without_parameter_servers_and_an_evaluator_have_no_coordinator(write, monkeypatch) -> None:
    write("train.py", "print(1)")
    monkeypatch.setattr(context, "_current", None)
    with pytest.raises(sdk.InputError, match=r"ctx\.coordinator in chief-0 of chief-0\. Next: submit with --ps 1"):
        sdk.context().coordinator  # noqa: B018
    context.enter(sdk.plan("train.py", workers=2, ps=1, evaluator=True).payload(1), "evaluator-0", Reporter(None))
    with pytest.raises(sdk.InputError, match="--ps"):
        sdk.context().per_worker_data(lambda: None)


@pytest.mark.full
def test_tf_keras_survives_a_killed_worker_and_resumes_the_epoch_after_a_killed_ps(write) -> None:
    write("train.py", (PROGRAMS / "parameter_server_fit.py").read_text())
    settings = {"code_keras": "legacy", "checkpoint_every": "20steps", "retry_infrastructure": 2}
    run = sdk.submit("train.py", args=["12"], workers=3, ps=1, **settings)
    until(lambda: run.status().saved_step or run.status().state.terminal, run.why)
    tasks.kill(run, "worker-1")
    until(lambda: run.status().restarted_alone or run.status().state.terminal, run.why)
    tasks.kill(run, "ps-0")
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    assert "Restarting worker-1 alone" in " ".join(str(run.why()).split())
    steps = [line for line in printed(run, "chief-0").splitlines() if line.startswith("epoch ")]
    # A step that was lost on its way back is taken twice.
    assert steps[0] == "epoch 0: steps 20" and int(steps[-1].split()[-1]) >= 12 * 20
    begun = [record for record in run.metrics() if record["attempt"] == 2]
    assert status.continued_step and 0 < len(begun) < 12, "it has not begun anew"
    losses = [record["loss"] for record in run.metrics()]
    assert losses[-1] < losses[0] / 10 and max(record["loss"] for record in begun) < losses[0]
    assert "the weights are on /job:ps/replica:0/task:0" in printed(run, "chief-0")
    assert "with parameter servers, each worker starts its data over" in printed(run, "chief-0")


@pytest.mark.full
def test_a_keras_3_fit_with_parameter_servers_fails_and_names_the_alternatives(submit) -> None:
    status = submit("""
        import keras, numpy as np, sdk

        with sdk.context().strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.ones((8, 1)), np.ones((8, 1)), verbose=0)
        """, workers=2, ps=1).wait(LIMIT_S)  # fmt: skip
    assert status.failure is not None and status.reason is sdk.Reason.USER_ERROR
    assert "fit() of Keras 3 cannot train with parameter servers" in status.failure.message
    assert "--code-keras legacy" in status.failure.message and "coordinator" in status.failure.traceback
