"""The trials of a sweep in Optuna's journal: they are proposed, claimed and ended here by ask and tell.

A trial is claimed with all its parameters by one object of the journal, which is created only if nothing was written since the
parameters were proposed. So each number is claimed once, and its parameters follow from the seed, the number, and the journal
before it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages.journal import JournalStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from ..storage.store import Store
from . import space
from .journal import OvertakenError, StoreJournal
from .records import SweepRecord, journal_prefix
from .space import Parameter, Value

# States of a trial.
RUNNING, PAUSED, COMPLETE, PRUNED, FAILED = "RUNNING", "PAUSED", "COMPLETE", "PRUNED", "FAILED"
_STATES = {
    TrialState.RUNNING: RUNNING, TrialState.WAITING: RUNNING, TrialState.COMPLETE: COMPLETE, TrialState.PRUNED: PRUNED,
    TrialState.FAIL: FAILED,
}  # fmt: skip
DIRECTIONS = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}
_OPTUNA = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of a sweep: `for trial in sweep.trials(): print(trial.number, trial.params, trial.value)`.

    Args:
        number: its number, from 0.
        params: the values of its parameters.
        run: the id of its run.
        state: RUNNING; PAUSED by asha, which may continue it; COMPLETE, PRUNED or FAILED.
        value: the best value of the metric so far; None before the first one.
        curve: the metric by epoch; by the number of the report, if the program reports no epochs.
        why: why it failed, was pruned or is paused.
        notes: the notes of drivers about it.
    """

    number: int
    params: Mapping[str, Value]
    run: str
    state: str
    value: float | None = None
    curve: Mapping[int, float] = field(default_factory=dict)
    why: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether it has not ended: `[trial for trial in sweep.trials() if trial.is_open]`."""
        return self.state in (RUNNING, PAUSED)

    @property
    def last(self) -> int:
        """The last epoch, 0 before the first one: `sum(trial.last for trial in sweep.trials())`."""
        return max(self.curve, default=0)

    @property
    def spent_usd(self) -> float | None:
        """Its cost in US dollars until its last end, if known: `sum(trial.spent_usd or 0.0 for trial in sweep.trials())`."""
        usd: float | None = self.notes.get("end", {}).get("spent_usd")
        return self.notes.get("spent_usd") if usd is None else usd


class Study:
    """The trials of one sweep. It is created in the journal of a driver; a reader has a `ReadJournal`."""

    def __init__(self, store: Store, record: SweepRecord, journal: StoreJournal | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._record, self.journal = record, journal or StoreJournal(store, journal_prefix(record))
        self._storage, self._direction = JournalStorage(self.journal), DIRECTIONS[record.spec.mode]
        about: dict[str, Any] = {"storage": self._storage, "study_name": record.spec.name}
        try:
            self._study = optuna.load_study(**about)
        except KeyError:
            self._study = optuna.create_study(**about, direction=self._direction, load_if_exists=True)
        self._id = self._storage.get_study_id_from_name(record.spec.name)
        self._distributions = {name: _distribution(each) for name, each in record.spec.space.items()}

    def trials(self) -> list[Trial]:
        """Return the trials by number."""
        return [self._trial(frozen) for frozen in self._study.get_trials(deepcopy=False)]

    def claim(self, trials: Sequence[Trial], position: int, notes: Mapping[str, Any]) -> bool:
        """Claim the next trial after these, which were read at this position; False if another driver wrote since."""
        number = len(trials)
        attributes = {"run": self._record.run_id(number), **notes}
        proposed = create_trial(
            state=TrialState.RUNNING,
            params=dict(self._proposed(trials)),
            distributions=self._distributions,
            user_attrs=attributes,
        )
        with suppress(OvertakenError), self.journal.only(position):
            self._study.add_trial(proposed)
            return True
        return False

    def note(self, trial: Trial, **notes: Any) -> None:
        """Note facts about a trial that has not ended."""
        for name, value in notes.items():
            if trial.notes.get(name) != value:
                with suppress(UpdateFinishedTrialError):
                    self._storage.set_trial_user_attr(self._trial_id(trial), name, value)

    def report(self, trial: Trial, curve: Mapping[int, float]) -> None:
        """Add the points of a trial's curve that are not there yet."""
        number = self._trial_id(trial)
        with suppress(UpdateFinishedTrialError), self.journal.together():
            for step, value in curve.items():
                if trial.curve.get(step) != value:
                    self._storage.set_trial_intermediate_value(number, step, value)
        read = False
        while not read:
            # Reads the objects, and fails once for each of them if another driver has ended the trial.
            with suppress(UpdateFinishedTrialError):
                read = bool(self._storage.get_trial(number))

    def tell(self, trial: Trial, state: str, why: str = "") -> None:
        """End a trial with the best value of its curve."""
        self.note(trial, **({"why": why} if why else {}))
        value = None if state == FAILED else trial.value
        with suppress(UpdateFinishedTrialError):  # another driver has ended it
            self._study.tell(
                trial.number, value if state == COMPLETE else None, state=_OPTUNA[state], skip_if_finished=True
            )

    def is_below_median(self, trial: Trial) -> bool:
        """Return whether Optuna's median pruner stops a trial."""
        return optuna.pruners.MedianPruner(n_startup_trials=4).prune(
            self._study, self._storage.get_trial(self._trial_id(trial))
        )

    def _trial_id(self, trial: Trial) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, trial.number)

    def _trial(self, frozen: FrozenTrial) -> Trial:
        notes, curve = frozen.user_attrs, dict(sorted(frozen.intermediate_values.items()))
        state, stopped = _STATES[frozen.state], notes.get("phase", {}).get("stopped", "")
        return Trial(
            number=frozen.number,
            params=frozen.params,
            run=str(notes.get("run", "")),
            state=PAUSED if state == RUNNING and stopped else state,
            value=best_of(self._record.spec.mode, curve.values()),
            curve=curve,
            why=str(notes.get("why", stopped)),
            notes=notes,
        )

    def _proposed(self, trials: Sequence[Trial]) -> Mapping[str, Value]:
        """Return the parameters of the next trial, which Optuna proposes from the trials so far."""
        spec, number = self._record.spec, len(trials)
        if spec.sampler == "grid":
            return space.point(spec.space, number)
        seed = int.from_bytes(hashlib.sha256(f"{spec.seed} {number}".encode()).digest()[:4], "big")
        random = spec.sampler == "random"
        # A trial that is going on counts as a bad one, so that the next ones do not repeat it.
        sampler = (
            optuna.samplers.RandomSampler(seed=seed)
            if random
            else optuna.samplers.TPESampler(seed=seed, constant_liar=spec.parallel > 1)
        )
        study = optuna.create_study(direction=self._direction, sampler=sampler)
        study.add_trials([] if random else [self._observation(trial) for trial in trials])
        return study.ask(fixed_distributions=self._distributions).params

    def _observation(self, trial: Trial) -> FrozenTrial:
        """Return a trial as the sampler sees it: one that is paused counts with its value so far, as a pruned one."""
        paused = PRUNED if trial.curve else FAILED
        state = paused if trial.state == PAUSED else trial.state
        return create_trial(
            state=_OPTUNA.get(state, TrialState.RUNNING),
            value=trial.value if state == COMPLETE else None,
            params=dict(trial.params),
            distributions=self._distributions,
            intermediate_values=dict(trial.curve),
        )


def best_of(mode: str, values: Iterable[float | None]) -> float | None:
    """Return the best of some values; None if none of them is finite."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (max if mode == "max" else min)(finite, default=None)


def _distribution(parameter: Parameter) -> BaseDistribution:
    low, high, step = parameter.low, parameter.high, parameter.step
    if parameter.options is not None:
        return CategoricalDistribution(parameter.options)
    if space.is_whole(parameter):
        return IntDistribution(int(low), int(high), log=parameter.log, step=int(step or 1))
    return FloatDistribution(low, high, log=parameter.log, step=step)
