"""Parameter servers and an evaluator, in local mode as on Vertex AI."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import LIMIT_S, PROGRAMS, until

import sdk
from sdk.records.recorder import read_events
from sdk.runtime import context
from sdk.runtime.reporting import Reporter
from sdk.testing import tasks

pytestmark = pytest.mark.usefixtures("warm_podlift")

# One binary for all roles, without a branch for those that serve.
ONE_BINARY = """
    import tensorflow as tf

    import sdk

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        weights = tf.Variable(tf.zeros([4, 1]))

    @tf.function
    def step(iterator):
        def replica(x):
            error = tf.matmul(x, weights) - tf.reduce_sum(x, axis=1, keepdims=True)
            weights.assign_sub(0.2 * tf.matmul(x, error, transpose_a=True) / 16.0)
            return tf.reduce_mean(error**2)

        return strategy.run(replica, args=(next(iterator),))

    def data():
        return tf.data.Dataset.from_tensor_slices(tf.random.stateless_normal([64, 4], [1, 2])).repeat().batch(16)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(data))
    for epoch in range(3):
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
        coordinator.join()
        sdk.context().report({"loss": float(losses[-1].fetch())}, step=epoch)
    print("the weights are on", weights.device)
"""
# The same by way of the context: the strategy is the one that the cluster calls for.
BY_CONTEXT = """
    import tensorflow as tf

    import sdk

    ctx = sdk.context()
    strategy = ctx.strategy
    if ctx.task == "evaluator-0":
        print("evaluating with", type(strategy).__name__)
        raise SystemExit
    with strategy.scope():
        weights = tf.Variable(tf.zeros([4]))
    state = tf.Module()
    state.weights = weights
    ckpt = ctx.checkpoint(state=state)
    ckpt.restore()

    def data():
        return tf.data.Dataset.from_tensors(tf.ones([4])).repeat()

    @tf.function
    def step(batches):
        return strategy.run(weights.assign_add, args=(next(batches),))

    batches = ctx.per_worker_data(data)
    for number in range(4):
        ctx.coordinator.schedule(step, args=(batches,))
        ctx.coordinator.join()
        ckpt.step()
    ctx.report({"sum": float(tf.reduce_sum(weights))}, step=4)
"""


def finished(entry: str, **more: Any) -> sdk.Run:
    limits = sdk.Limits(timeout_s=LIMIT_S, exit_wait_s=more.pop("exit_wait_s", 3600.0))
    return sdk.submit(sdk.Job(entry, resources=sdk.Resources(**more), limits=limits))


def printed(run: sdk.Run, task: str) -> str:
    return "\n".join(line.text for line in run.logs(task=task))


@pytest.mark.process
def test_servers_that_never_end_are_stopped_as_soon_as_the_chief_is_done(write: Any) -> None:
    write(
        "train.py",
        """
        import json, os, threading
        import sdk

        task = json.loads(os.environ["TF_CONFIG"])["task"]
        if task["type"] in ("worker", "ps"):
            print("serving", flush=True)
            threading.Event().wait()
        sdk.context().report({"loss": 0.5}, step=1)
        """,
    )
    # Who waited for the servers would wait for an hour.
    run = finished("train.py", workers=3, ps=2)
    assert run.wait(timeout_s=LIMIT_S).state is sdk.State.SUCCEEDED
    assert run.result().metrics == {"loss": 0.5}
    assert run.plan.tasks == ["chief-0", "worker-0", "worker-1", "ps-0", "ps-1"]
    assert "limit_exit_wait" not in printed(run, "chief-0")


@pytest.mark.process
def test_an_evaluator_knows_what_it_is_and_comes_to_its_own_end(write: Any) -> None:
    write(
        "train.py",
        """
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
        """,
    )
    run = finished("train.py", workers=2, evaluator=True)
    assert run.wait(timeout_s=LIMIT_S).state is sdk.State.SUCCEEDED
    config, task, pools = json.loads(printed(run, "evaluator-0").splitlines()[-1])
    assert (config["task"]["type"], config["task"]["index"]) == ("evaluator", 0)
    assert sorted(config["cluster"]) == ["chief", "worker"], "an evaluator is no part of the cluster"
    assert task == {"type": "workerpool3", "index": 0}
    assert pools == ["workerpool0", "workerpool1", "workerpool3"]


@pytest.mark.process
def test_a_failure_of_a_server_is_the_failure_of_the_run(write: Any) -> None:
    write(
        "train.py",
        """
        import sdk, threading
        if sdk.context().task == "ps-0":
            raise ValueError("no port")
        threading.Event().wait()
        """,
    )
    run = finished("train.py", workers=2, ps=1)
    status = run.wait(timeout_s=LIMIT_S)
    assert (status.state, status.reason) == (sdk.State.FAILED, sdk.Reason.USER_ERROR)
    assert status.failure is not None
    assert "ps-0 failed: ValueError: no port" in status.failure.message


@pytest.mark.process
def test_a_chief_with_servers_stops_between_two_steps_and_takes_them_along(write: Any) -> None:
    write(
        "train.py",
        """
        import threading, time
        import sdk

        ctx = sdk.context()
        if not ctx.is_chief:
            threading.Event().wait()
        print("training", flush=True)
        while not ctx.should_stop():
            time.sleep(0.001)
        print("saved", flush=True)
        """,
    )
    run = finished("train.py", workers=2, ps=1)
    until(lambda: "training" in printed(run, "chief-0"), run.why)
    # Who gave the servers their time would take an hour.
    run.cancel(grace_s=3600)
    assert run.wait(timeout_s=LIMIT_S).state is sdk.State.CANCELLED
    assert printed(run, "chief-0").endswith("saved")


@pytest.mark.process
def test_a_job_without_parameter_servers_and_an_evaluator_have_no_coordinator(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("train.py", "print(1)")
    monkeypatch.setattr(context, "_current", None)
    with pytest.raises(sdk.InputError, match=r"ctx\.coordinator in chief-0 of chief-0\. Next: submit with --ps 1"):
        sdk.context().coordinator  # noqa: B018
    context.enter(sdk.plan("train.py", workers=2, ps=1, evaluator=True).payload(1), "evaluator-0", Reporter(None))
    with pytest.raises(sdk.InputError, match="--ps"):
        sdk.context().per_worker_data(lambda: None)


@pytest.mark.process
@pytest.mark.full
def test_workers_and_servers_with_the_chiefs_program_serve_it_and_hold_the_weights(
    write: Any,
) -> None:
    write("train.py", ONE_BINARY)
    run = finished("train.py", workers=3, ps=1)
    assert run.wait(timeout_s=LIMIT_S).state is sdk.State.SUCCEEDED, printed(run, "chief-0")
    assert run.result().metrics["loss"] < 0.1
    for task in ("worker-0", "worker-1", "ps-0"):
        assert f"{task} runs tf.distribute.Server here, until it is stopped" in printed(run, task)
    assert "the weights are on /job:ps/replica:0/task:0" in printed(run, "chief-0")


@pytest.mark.process
@pytest.mark.full
def test_the_context_gives_the_strategy_of_the_cluster_and_its_state_is_saved(write: Any) -> None:
    write("train.py", BY_CONTEXT)
    run = finished("train.py", workers=3, ps=2, evaluator=True)
    status = run.wait(timeout_s=LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED, printed(run, "chief-0")
    assert run.result().metrics["sum"] == 16.0
    assert status.saved_step == 4
    assert "evaluating with _DefaultDistributionStrategy" in printed(run, "evaluator-0")


@pytest.mark.tensorflow
@pytest.mark.full
def test_a_worker_that_is_killed_while_parameter_servers_train_comes_back_and_no_step_is_missing(write: Any) -> None:
    write("train.py", (PROGRAMS / "parameter_servers.py").read_text())
    job = sdk.Job(
        "train.py",
        resources=sdk.Resources(workers=3, ps=1),
        retry=sdk.Retry(infrastructure=1),
        limits=sdk.Limits(timeout_s=LIMIT_S),
    )
    run = sdk.submit(job)
    tasks.wait_for_step(run, 50)
    started = next(event for event in read_events(run.plan.paths, ("attempt_started",)))
    tasks.kill(run, "worker-1")
    status = run.wait(timeout_s=LIMIT_S)
    assert (status.state, status.attempts, status.restarted_alone) == (sdk.State.SUCCEEDED, 1, {"worker-1": 1}), (
        run.why()
    )
    metrics = run.result().metrics
    assert metrics["missing"] == 0 and metrics["loss"] < metrics["first"] / 10
    assert "by 3 processes" in printed(run, "chief-0")
    assert printed(run, "worker-1").count("begins worker-1") == 2
    for task in ("chief-0", "worker-0", "ps-0"):
        assert printed(run, task).count(f"begins {task}") == 1, "it was restarted"
    exited = {event.data["task"] for event in read_events(run.plan.paths, ("exited",))}
    assert set(started.data["pids"]) == exited, "each task ended with the run"


@pytest.mark.process
@pytest.mark.full
def test_a_fit_of_tf_keras_goes_on_without_a_killed_worker_and_after_a_killed_server_from_the_last_epoch(
    write: Any,
) -> None:
    write("train.py", (PROGRAMS / "parameter_server_fit.py").read_text())
    job = sdk.Job(
        "train.py",
        args=["12"],
        resources=sdk.Resources(workers=3, ps=1),
        code=sdk.Code(keras="legacy"),
        checkpoints=sdk.Checkpoints(every_steps=20),
        retry=sdk.Retry(infrastructure=2),
        limits=sdk.Limits(timeout_s=LIMIT_S),
    )
    run = sdk.submit(job)
    until(lambda: run.status().saved_step or run.status().state.terminal, run.why)
    tasks.kill(run, "worker-1")
    until(lambda: run.status().restarted_alone or run.status().state.terminal, run.why)
    tasks.kill(run, "ps-0")
    status = run.wait(timeout_s=LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    assert "Restarting worker-1 alone" in " ".join(str(run.why()).split())
    steps = [line for line in printed(run, "chief-0").splitlines() if line.startswith("epoch ")]
    # A step that was lost on its way back is taken twice.
    assert steps[0] == "epoch 0: steps 20" and int(steps[-1].split()[-1]) >= 12 * 20
    begun = [record for record in run.metrics() if record["attempt"] == 2]
    assert status.continued_step and 0 < len(begun) < 12, "it has not begun anew"
    losses = [record["metrics"]["loss"] for record in run.metrics()]
    assert losses[-1] < losses[0] / 10 and max(record["metrics"]["loss"] for record in begun) < losses[0]
    assert "the weights are on /job:ps/replica:0/task:0" in printed(run, "chief-0")
    assert "with parameter servers, each worker begins its data anew" in printed(run, "chief-0")


@pytest.mark.process
@pytest.mark.full
def test_a_fit_of_keras_3_with_parameter_servers_ends_with_what_can_train_with_them(write: Any) -> None:
    write(
        "train.py",
        """
        import keras, numpy as np, sdk

        with sdk.context().strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.ones((8, 1)), np.ones((8, 1)), verbose=0)
        """,
    )
    status = finished("train.py", workers=2, ps=1).wait(timeout_s=LIMIT_S)
    assert status.failure is not None and status.reason is sdk.Reason.USER_ERROR
    assert "fit() of Keras 3 cannot train with parameter servers" in status.failure.message
    assert "--code-keras legacy" in status.failure.message and "coordinator" in status.failure.traceback
