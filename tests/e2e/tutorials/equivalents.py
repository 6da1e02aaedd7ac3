"""Programs of our own with the tutorials' techniques: they run wherever this repository is."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import RUNS, Fails, Outcome


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """One program and its two outcomes.

    Args:
        file: in `programs/`, without ".py".
        technique: what it shows.
        args: its argv.
        workers: tasks.
        cluster: shape of the cluster.
        keras3: what happens with `keras="auto"`.
        legacy: what happens with `code_keras="legacy"`.
        says: must stand in the log of every task of a run that succeeds.
        notes: for the table.
    """

    file: str
    technique: str
    args: tuple[str, ...] = ()
    workers: int = 1
    cluster: str = "workers"
    keras3: Outcome = RUNS
    legacy: Outcome = RUNS
    says: str = ""
    notes: str = ""

    @property
    def name(self) -> str:
        """Unique: file, shape where it is not the usual one, and arguments."""
        return " ".join([self.file, *(["(chief)"] if self.cluster == "chief" else []), *self.args])


def _removed(what: str, technique: str, keras3: Fails, legacy: Fails | None = None, notes: str = "") -> Equivalent:
    return Equivalent(file="removed", args=(what,), technique=technique, keras3=keras3, legacy=legacy, notes=notes)


def _gone(what: str, technique: str, error: str, fragment: str, notes: str) -> Equivalent:
    return _removed(what, technique, Fails(error, fragment), Fails(error, fragment), notes)


_SCOPE = "instead: build and compile below `strategy.scope()`"
_FIT = "instead: `fit` below MultiWorkerMirroredStrategy"

EQUIVALENTS = [
    Equivalent(file="mirrored_fit", technique="MirroredStrategy, two logical devices", says="replicas=2 accuracy=1.00"),
    Equivalent(file="checkpoint_resume", technique="ModelCheckpoint, load_model", says="from epoch 1 to 2"),
    Equivalent(file="workers_fit", technique="MultiWorkerMirroredStrategy, TF_CONFIG", workers=2,
               says="workers=2 replicas=2"),
    Equivalent(file="workers_fit", technique="the same beside a chief", workers=2, cluster="chief",
               says="workers=1 replicas=2", notes='counts one of two workers; such programs need `local_cluster="workers"`'),
    Equivalent(file="workers_save", technique="one writer, CheckpointManager", workers=2, says="saved, restored"),
    Equivalent(file="workers_backup", technique="BackupAndRestore, each epoch", workers=2,
               says="epochs of the second training: 2 3"),
    Equivalent(file="workers_backup", args=("--every", "5"), technique="BackupAndRestore, every 5 steps", workers=2,
               says="epochs of the second training: 1 2 3", notes="the newest backup is from the second epoch"),
    Equivalent(file="workers_loop", technique="custom loop, reduce over all workers", workers=2, says="loss 1."),
    Equivalent(file="report_and_keep", technique="metrics without a callback, newest model kept", workers=2, says="loss"),
    Equivalent(file="central_storage", technique="CentralStorageStrategy, one device", says="replicas=1"),
    Equivalent(file="parameter_server", technique="ParameterServerStrategy, servers within the task", says="loss 1.3863 ->",
               notes="as in a notebook; with `ps=1` the servers are tasks of the job"),
    _removed("compile_with_a_strategy", "compile(distribute=)", Fails("TypeError", "unexpected keyword argument 'distribute'"),
             Fails("ValueError", "`distribute` argument in compile is not available"), _SCOPE),
    _removed("estimator_from_keras", "model_to_estimator", Fails("AttributeError", "has no attribute 'estimator'"),
             Fails("NotImplementedError", "model_to_estimator function not available"), _FIT),
    _gone("run_config", "RunConfig(train_distribute=)", "AttributeError", "has no attribute 'estimator'", _FIT),
    _gone("contrib_all_reduce", "CollectiveAllReduceStrategy", "AttributeError", "has no attribute 'contrib'", _FIT),
    _gone("standalone_client", "a client that sends the model to workers", "AttributeError", "has no attribute 'contrib'",
          "instead: `sdk.submit` sends the program"),
    _gone("tpu_steps_per_run", "TPUStrategy(steps_per_run=)", "TypeError", "unexpected keyword argument 'steps_per_run'",
          "instead: `compile(steps_per_execution=)`"),
    _removed("saved_model_folder", "save to a SavedModel folder", Fails("ValueError", "Invalid filepath extension for saving"),
             RUNS, "instead: a name that ends in `.keras`, or `model.export`"),
]  # fmt: skip
