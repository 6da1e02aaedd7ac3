"""One task that is not the chief meets backups that are damaged, interrupted, kept or removed; exits 0 if all is well."""

import pathlib
import shutil
import sys

SHARED, TEMP = map(pathlib.Path, sys.argv[1:])

import keras  # noqa: E402
import numpy as np  # noqa: E402

from sdk.runtime.patches import chief_writes, install  # noqa: E402


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise InterruptedError


def fit(*callbacks):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.MeanSquaredError())
    try:
        return model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=4, verbose=0, callbacks=callbacks).epoch
    except InterruptedError:
        return "interrupted"


def backup(**options):
    return keras.callbacks.BackupAndRestore(SHARED / "backup", **options)


# The chief's part, before the cure is in force: two epochs saved, the newest file damaged.
assert fit(backup(double_checkpoint=True), Stop()) == "interrupted"
(SHARED / "backup" / "latest.weights.h5").write_bytes(b"torn")
before = {path.name: path.read_bytes() for path in (SHARED / "backup").iterdir()}
assert len(before) == 4

install(chief_writes.patches(str(TEMP)))
assert fit(backup(double_checkpoint=True)) == [1, 2, 3], "the file before the damaged one is after epoch 0"
assert {path.name: path.read_bytes() for path in (SHARED / "backup").iterdir()} == before

mine = backup(delete_checkpoint=False, double_checkpoint=True)
assert fit(mine, Stop()) == "interrupted"
assert fit(mine) == [2, 3], "an own backup of the same process counts"
assert fit(mine) == [], "and is kept on demand"
assert mine.backup_dir == SHARED / "backup"
shutil.rmtree(SHARED / "backup")
assert fit(mine) == [0, 1, 2, 3], "a backup that the program removed is not restored"
assert not (SHARED / "backup").exists()

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
keras.models.save_model(model, SHARED / "late.keras")
assert not (SHARED / "late.keras").exists(), "Keras was imported before the cure came"
assert keras.saving.load_model(SHARED / "late.keras")
