"""Exceptions of a program in Keras's methods, and its replacements of their parts, stay its own. The trainer is a stand-in."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sdk.records.events import Event, message_of
from sdk.runtime.patches import predictions

BATCHES = ["first", "second"]


@pytest.fixture
def model() -> Any:
    """A model of two workers. Its methods fail with `error`, if it has one; `predict` calls its function with each batch."""

    class Epochs:
        steps_per_epoch = _num_batches = None
        steps_per_execution = 1
        _distribute_strategy = None

        def _get_iterator(self) -> Any:
            return BATCHES

    class Trainer:
        error: BaseException | None = None
        predict_function: Callable[[Any], Any] | None = None
        distribute_strategy = None

        def make_predict_function(self, force: bool = False) -> None:
            raise AssertionError("The program has made its own function.")

        def fit(self) -> None:
            self.evaluate(_use_cached_eval_dataset=True)

        def evaluate(self, _use_cached_eval_dataset: bool = False) -> None:
            if self.error is not None:
                raise self.error

        def predict(self) -> list[Any]:
            self.make_predict_function()
            assert self.predict_function is not None
            return [self.predict_function([batch]) for _, batch in zip(BATCHES, Epochs()._get_iterator(), strict=False)]

        predict_on_batch = evaluate

    trainer: Any = SimpleNamespace(TensorFlowTrainer=Trainer, TFEpochIterator=Epochs)
    predictions.install(trainer, weighs=lambda _: True, is_multi_worker=lambda _: True)
    return Trainer()


class Forwards(Exception):
    """As errors of clients of services: a missing attribute is looked up in the answer."""

    def __getattr__(self, name: str) -> Any:
        return self.args[0][name]


class Closed(Exception):
    @property
    def __dict__(self) -> Any:
        raise RuntimeError("It is nobody's business.")


@pytest.mark.parametrize("error", [Forwards({"__notes__": []}), Closed()], ids=["forwards", "closed"])
def test_an_error_that_breaks_any_look_at_its_attributes_still_reaches_the_program(model, error: BaseException) -> None:
    model.error = error
    with pytest.raises(type(error)) as raised:
        model.evaluate()
    assert raised.value is error
    assert predictions.call_of(error) == ("evaluate" if isinstance(error, Forwards) else "")


def test_an_error_without_a_call_has_none() -> None:
    assert predictions.call_of(Forwards({})) == predictions.call_of(Closed()) == ""


@pytest.mark.parametrize("way", ["predict_function", "make_predict_function"])
def test_a_function_that_the_program_sets_on_its_model_gets_the_batches(model: Any, way: str) -> None:
    def function(data: Any) -> str:
        (batch,) = data
        return f"predicted {batch}"

    def make(force: bool = False) -> None:
        model.predict_function = function

    setattr(model, way, function if way == "predict_function" else make)
    assert model.predict() == ["predicted first", "predicted second"]


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("evaluate", "chief-0 was in evaluate, which every task has to call. Next: call evaluate in every task"),
        ("fit", "chief-0 was in the validation of fit, which needs equally many batches in every task."),
    ],
)
def test_the_advice_about_a_lost_task_fits_the_caller_of_evaluate(model: Any, method: str, advice: str) -> None:
    model.error = ConnectionResetError("Connection reset by peer")
    with pytest.raises(ConnectionResetError):
        getattr(model, method)()
    failure = {"type": "ConnectionResetError", "message": "Connection reset by peer", "traceback": ""}
    data = {**failure, "call": predictions.call_of(model.error)}
    failed = Event(attempt=1, source="chief-0", sequence=1, kind="failed", time=1.0, data=data)
    assert advice in message_of(failed, ["worker-0"])
