"""A task is in one part at every moment, and its parts add up to its time."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.records.accounts import PARTS, TaskAccount
from sdk.records.recorder import read_account, read_position
from sdk.runtime.account import CHECKPOINT, COMPILE, EVALUATION, OTHER, START, STEP, Account
from sdk.runtime.hooks.accounting import FitAccounting
from sdk.runtime.hooks.starvation import Pipeline, Stage, StarvedInput, change
from sdk.runtime.reporting import ProgressWriter

S = 1_000_000_000


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ns = self.waited = 0

    def __call__(self) -> int:
        return self.ns

    def now(self) -> float:
        return 1000.0 + self.ns / S


def made(time: Time, *, measures: bool = True) -> Account:
    account = Account(time, time.now)
    if measures:
        account.waited_ns = lambda: time.waited
    return account


def read(account: Account, folder: Path) -> TaskAccount:
    ProgressWriter(str(folder / "chief-0"), account).beat()
    found = read_account(str(folder / "chief-0"))
    assert found is not None
    return found


def test_each_part_gets_its_time_and_steps_give_theirs_to_the_input(tmp_path: Path) -> None:
    time = Time()
    account = made(time)
    for part, seconds, waited in (
        (COMPILE, 5, 0),  # after 5 s of start
        (STEP, 3, 1),  # the first step compiled for 3 s, one of which it waited
        (STEP, 10, 4),
        (EVALUATION, 2, 0.5),
        (OTHER, 6, 6),  # an evaluation waits for its own input
        (STEP, 1, 0),
    ):
        time.ns += int(seconds * S)
        time.waited += int(waited * S)
        account.enter(part)
    time.ns += 2 * S
    with account.during(CHECKPOINT):
        time.ns += 7 * S
    time.ns += S
    found = read(account, tmp_path)
    assert found.parts == {
        "start": 5, "compile": 2, "input_wait": 1 + 4 + 0.5, "step": 6 + 1.5 + 3, "checkpoint": 7, "evaluation": 6, "other": 1
    }  # fmt: skip
    assert found.total_s == found.seen - found.begun == time.ns / S
    assert (found.part, found.measures_input) == ("step", True)


def test_a_loop_that_tells_its_steps_alone_starts_until_the_first_one(tmp_path: Path) -> None:
    time = Time()
    account = made(time, measures=False)
    writer = ProgressWriter(str(tmp_path / "chief-0"), account)
    writer.begin(40)  # records of an earlier attempt
    for step in (41, 42, 44):
        time.ns += 2 * S
        writer.step(step)
    found = read_account(str(tmp_path / "chief-0"))
    assert found is not None and (found.start, found.step, found.measures_input) == (2, 4, False)
    assert (found.steps, found.reached, found.base) == (4, 44, 40)
    position = read_position(str(tmp_path / "chief-0"))
    assert position is not None and position.step == 44


def test_a_loop_over_the_data_of_a_checkpoint_compiles_in_its_first_step() -> None:
    time = Time()
    account = made(time)
    for call, seconds in zip([account.batch, lambda: account.step(1)] * 2, (3, 4, 1, 1), strict=True):
        time.ns += seconds * S
        call()
    account.enter(OTHER)
    time.ns += S
    account.batch()
    assert [account.spent(part) / S for part in (START, COMPILE, STEP, OTHER)] == [3, 4, 2, 1]
    assert account.part == "step"


MOVES = st.tuples(st.integers(0, len(PARTS) - 1), st.integers(0, 10 * S), st.integers(-S, 10 * S))


@given(st.lists(MOVES, max_size=40))
def test_the_parts_add_up_in_any_order_and_whatever_the_waiting_is_said_to_be(moves: list) -> None:
    time = Time()
    account = made(time)
    for part, ns, waited in moves:
        time.ns += ns
        time.waited += waited
        account.enter(part)
    assert all(account.spent(part) >= 0 for part in range(len(PARTS)))
    assert sum(account.spent(part) for part in range(len(PARTS))) == time.ns


def test_fit_and_evaluate_report_their_activity_also_when_they_fail() -> None:
    time = Time()
    account = made(time)

    def pass_s(seconds: float) -> None:
        time.ns += int(seconds * S)

    class CallbackList:
        def __init__(self, model: object) -> None:
            self.model = model

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            pass_s(2)

        def on_train_batch_begin(self, *_: object) -> None: ...

        on_test_begin = on_test_end = on_predict_begin = on_predict_end = on_train_batch_begin

    class Model:
        train_function: object = None

        def evaluate(self) -> None:
            callbacks = CallbackList(self)
            callbacks.on_test_begin()
            pass_s(10)
            callbacks.on_test_end()

        def fit(self, x: object = None, *, fails: bool = False, inner: bool = False) -> None:
            callbacks = CallbackList(self)
            for step in range(4):
                callbacks.on_train_batch_begin(step)
                pass_s(3)
                if inner and step == 1:
                    Model().fit()  # its steps are part of this one
            if fails:
                callbacks.on_test_begin()
                pass_s(5)
                raise KeyError("x")
            self.evaluate()
            pass_s(1)
            callbacks.on_epoch_end(0)

    trainer = "keras.src.backend.tensorflow.trainer"
    module = SimpleNamespace(CallbackList=CallbackList, TensorFlowTrainer=Model, __name__=trainer)
    for patch in FitAccounting(account, StarvedInput(account, print)).patches():
        if patch.module in ("keras.src.callbacks.callback_list", trainer):
            patch.apply(module)
    model = Model()
    model.evaluate()
    pass_s(4)
    model.train_function = pass_s
    model.fit()
    model.fit(inner=True)
    with pytest.raises(KeyError):
        model.fit(fails=True)
    assert not account.in_fit and account.part == "other"
    pass_s(7)
    account.enter(OTHER)
    spent = {part: account.spent(index) / S for index, part in enumerate(PARTS)}
    # The inner fit evaluates too, which counts as its evaluation; each end of an epoch has 3 s of callbacks.
    assert spent["evaluation"] == 4 * 10 + 5
    assert (spent["start"], spent["compile"]) == (4, 3)
    assert sum(spent.values()) == time.ns / S
    assert spent["step"] == 9 + 12 + 12 + 12 and spent["other"] == 7 + 3 * 3


SLOW_MAP = Stage(kind="MapDataset", function="parse", python=True)
PARALLEL = Stage(kind="ParallelMapDataset")
GENERATOR = Stage(kind="FlatMapDataset", python=True)
CACHE, PREFETCH, BATCH = (Stage(kind=f"{name}Dataset") for name in ("Cache", "Prefetch", "Batch"))


@pytest.mark.parametrize(
    ("stages", "advice"),
    [
        ((PREFETCH, BATCH, SLOW_MAP), ".map(parse, num_parallel_calls=tf.data.AUTOTUNE)"),
        ((BATCH, Stage(kind="InterleaveDataset")), ".interleave(function, num_parallel_calls=tf.data.AUTOTUNE)"),
        ((SLOW_MAP, CACHE, GENERATOR), ".map(parse, num_parallel_calls"),
        ((BATCH, GENERATOR), "the elements of the Python generator with .cache()"),
        ((BATCH, PARALLEL), "in memory with .cache() before shuffle"),
        ((BATCH, CACHE, SLOW_MAP), "more CPUs"),
    ],
)
def test_the_advice_is_the_first_change_that_helps(stages: tuple[Stage, ...], advice: str) -> None:
    assert advice in change(Pipeline(stages=stages))


def test_prefetch_is_advised_only_where_tf_data_does_not_add_it() -> None:
    assert ".prefetch(" in change(Pipeline(stages=(BATCH, SLOW_MAP), prefetches=False))
    assert ".prefetch(" not in change(Pipeline(stages=(PREFETCH, SLOW_MAP), prefetches=False))
    assert "use_multiprocessing=True" in change(Pipeline(stages=(), made_by="PyDataset"))
    assert "num_workers=4" in change(Pipeline(stages=(), made_by="loader"))
    assert "PyDataset with workers" in change(Pipeline(stages=(), made_by="generator"))
    assert "more CPUs" in change(Pipeline(stages=(), made_by="arrays"))


def test_data_that_cannot_be_looked_at_do_not_end_their_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: object) -> Pipeline:
        raise KeyError("not here")

    monkeypatch.setattr("sdk.runtime.hooks.starvation.pipeline_of", fails)
    time, told = Time(), list[str]()
    account = made(time)
    StarvedInput(account, told.append).watch(object())
    for _ in range(13):
        account.enter(STEP)
        time.ns, time.waited, account.steps = time.ns + S, time.waited + S // 2, account.steps + 1
    assert told == [] and account.settled is None


@pytest.mark.parametrize(("waited_ms", "starves"), [(900, True), (250, True), (150, False), (0, False)])
def test_a_training_that_waits_for_a_fifth_of_its_steps_is_told_once(monkeypatch, waited_ms, starves) -> None:
    monkeypatch.setattr("sdk.runtime.hooks.starvation.pipeline_of", lambda data: Pipeline(stages=data))
    time, told = Time(), list[str]()
    account = made(time)
    starved = StarvedInput(account, told.append)
    for _ in range(2):  # two trainings
        starved.watch((BATCH, SLOW_MAP))
        account.in_fit = True
        account.enter(COMPILE)
        time.ns, time.waited = time.ns + 60 * S, time.waited + 59 * S  # fills a shuffle buffer
        for _ in range(30):
            account.enter(STEP)
            account.step(1)
            time.ns, time.waited = time.ns + S, time.waited + waited_ms * S // 1000
        starved.watch(None)
    assert len(told) == starves
    if starves:
        assert f"({waited_ms / 10:.0f}%)" in told[0] and ".map(parse," in told[0]
