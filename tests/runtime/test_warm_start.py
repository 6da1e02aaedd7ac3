"""A run with a warm start begins with the weights of the registered model, in each kind of loop and cluster."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from support import LIMIT_S, PROGRAMS, needs, said

import sdk

pytestmark = [pytest.mark.full, pytest.mark.tensorflow]

needs("tensorflow", "tf_keras", "sklearn")
BUDGETS = {"retry_infrastructure": 1, "retry_user_errors": 1}


def submitted(root: Path, *args: str, state: sdk.State = sdk.State.SUCCEEDED, **settings: object) -> sdk.Run:
    words = [*args, "--earlier", "3"] if "warm_start" in settings else [*args]
    run = sdk.submit(PROGRAMS / "warm_started.py", root=root, args=words, model="digits", **settings)
    assert run.wait(LIMIT_S).state is state, run.why()
    return run


def numbers(run: sdk.Run, word: str, attempt: int | None = None) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in run.logs(attempt=attempt):
        if line.text.startswith(f"{word} "):
            found.setdefault(line.task, []).append(float(line.text.split()[1]))
    return found


def log(run: sdk.Run) -> str:
    return "\n".join(line.text for line in run.logs())


def asked(run: sdk.Run) -> list[str]:
    return [line for line in said(run) if "loaded" in line]


def champion(root: Path, *args: str, **settings: object) -> float:
    """Train a model, register and promote it, and return its loss."""
    run = submitted(root, *args, **settings)
    registry = sdk.models(root)
    # It is one version, however often its run is registered.
    registry.add(run.url, model="digits")
    registry["digits"].promote("latest")
    ((loss,),) = numbers(run, "last").values()
    return loss


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A root with a champion, and its loss."""
    root = tmp_path_factory.mktemp("root")
    return root, champion(root)


def began_with(run: sdk.Run, loss: float, *, tasks: Sequence[str] = ("chief-0",)) -> None:
    first = numbers(run, "first")
    assert set(first) == set(tasks)
    for found in first.values():
        assert found[0] == pytest.approx(loss, rel=1e-5)


def test_the_first_step_has_the_champions_loss_and_a_fresh_optimizer(trained: tuple[Path, float]) -> None:
    root, loss = trained
    run = submitted(root, warm_start="champion")
    began_with(run, loss)
    assert numbers(run, "steps") == {"chief-0": [3]}
    assert "warm start: 4 weights of model.keras in version 1 of 'digits', the champion are loaded" in log(run)
    model = sdk.models(root)["digits"]
    assert str(model.version("latest").record.warm_start) == "version 1 of 'digits', the champion"
    assert model.diff(1, "latest").warm_start == (0, 1)
    with pytest.raises(sdk.InputError, match=rf"no model.* Its last checkpoint, at step \d+, .*-resume-from {run.id}"):
        sdk.models(root).add(run.id, path="work/none")


@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_kill_every_worker_starts_warm_again_or_continues_a_checkpoint(
    trained: tuple[Path, float], workers: int
) -> None:
    root, loss = trained
    run = submitted(root, "--disturbed", warm_start="champion", workers=workers, checkpoint_every="1steps", **BUDGETS)
    assert numbers(run, "first", 1) == {}
    tasks = ("chief-0", "worker-0")[:workers]
    assert numbers(run, "first", 2) == {task: [pytest.approx(loss, rel=1e-5)] for task in tasks}
    # The callback counts on, and the optimizer too.
    assert numbers(run, "first", 3) == {}
    assert numbers(run, "steps", 3) == {task: [3] for task in tasks}
    losses = numbers(run, "last", 3)
    assert {*losses} == {*tasks} and losses[tasks[-1]] == losses["chief-0"]
    assert losses["chief-0"][0] < loss
    assert "warm start: not loaded, the run already has a checkpoint" in log(run)


def test_weights_restored_by_the_programs_own_callback_have_priority(trained: tuple[Path, float]) -> None:
    root, loss = trained
    run = submitted(root, "--disturbed", "--backup", warm_start="champion", **BUDGETS)
    assert numbers(run, "first", 2) == {"chief-0": [pytest.approx(loss, rel=1e-5)]}
    assert numbers(run, "first", 3)["chief-0"][0] < loss * 0.999


def test_a_loop_asks_for_the_weights_and_keeps_the_ones_that_it_has_restored(trained: tuple[Path, float]) -> None:
    root, loss = trained
    run = submitted(root, "--loop", "--disturbed", warm_start="champion", retry_user_errors=1)
    began_with(run, loss)
    assert asked(run) == ["loaded True", "restored False loaded True", "loaded True", "restored True loaded False"]
    undisturbed = submitted(root, "--loop", warm_start="champion")
    assert numbers(run, "shifted") == numbers(undisturbed, "shifted")
    assert not undisturbed.status().findings


def test_a_program_that_never_used_them_gets_a_note(trained: tuple[Path, float]) -> None:
    root, _ = trained
    run = submitted(root, "--loop", "--ignored", warm_start="champion")
    (note,) = run.status().findings
    assert sdk.models(root).add(run.id).record.warm_start is None
    assert "the weights of version 1 of 'digits', the champion were never loaded" in note
    assert "sdk.context().warm_start(model)" in note


def test_a_model_of_another_architecture_is_the_programs_mistake_before_any_step(trained: tuple[Path, float]) -> None:
    root, _ = trained
    failed = sdk.State.FAILED
    run = submitted(root, "--width", "16", state=failed, warm_start="champion", retry_infrastructure=1)
    assert "does not fit the model 'sequential" in run.why() and "' of this program (3 differences)" in run.why()
    assert "layers/dense/vars/0: [64, 16] in this program, [64, 32] in the saved model" in log(run)
    assert run.status().attempts == 1
    assert numbers(run, "first") == {}


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        (["--lazy"], {}),
        (["--lazy"], {"code_keras": "legacy"}),
        # The loss that tf_keras reports after a batch is the sum of both workers.
        (["--eager"], {"code_keras": "legacy", "workers": 2}),
        ([], {"accelerator": "v5e-4"}),
        (["--lazy"], {"workers": 2}),
        (["--loop"], {"workers": 2, "ps": 1}),
    ],
)
def test_models_that_are_built_late_tf_keras_and_replicas_begin_with_them_too(args, settings, tmp_path) -> None:
    first = {key: value for key, value in settings.items() if key == "code_keras"}
    loss = champion(tmp_path, *[word for word in args if word != "--loop"], **first)
    # With parameter servers, the first task trains for all.
    tasks = ("chief-0", "worker-0") if "workers" in settings and "ps" not in settings else ("chief-0",)
    began_with(submitted(tmp_path, *args, warm_start="champion", **settings), loss, tasks=tasks)


def test_without_a_version_the_weights_are_fresh_and_the_log_says_so(tmp_path: Path) -> None:
    run = submitted(tmp_path, "--loop", warm_start="last")
    assert asked(run) == ["loaded False", "restored False loaded False"]
    assert f"warm start: fresh weights: the model 'digits' below {tmp_path} has no version yet" in log(run)
