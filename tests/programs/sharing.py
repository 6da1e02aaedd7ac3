"""A training program that saves in every way it can to one shared folder, the same in all tasks, as users' programs do.

`sharing.py SHARED TEMP [die|alone|mistaken]`: with `die`, each task kills itself when epoch 2 begins; with `alone`, there is
no chief with files to read; with `mistaken`, the program takes worker 0 for the chief, as programs for
a cluster of workers only do. A task of type "worker" takes the cure with TEMP as its temporary folder. Each task leaves what
it saw in `$AIP_MODEL_DIR/<type>.json`.
"""

import json
import os
import pathlib
import signal
import sys
import tempfile

SHARED, TEMP = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
CLUSTER = json.loads(os.environ.get("TF_CONFIG", "{}"))
TASK = CLUSTER.get("task", {}).get("type", "worker")
if TASK == "worker":
    from sdk import logs
    from sdk.runtime.patches import chief_writes, install

    os.umask(0o077)  # tells its files from the chief's
    logs.start(logs.PLAIN)
    install(chief_writes.patches(str(TEMP)))
elif "mistaken" in sys.argv:
    from sdk.runtime.patches import chief_writes, install

    install(chief_writes.chief_patches())

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

keras = tf.keras
LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
# tf_keras cannot load its `.weights.h5` into BatchNormalization under this strategy, on any task.
WEIGHTS, BEST = (".h5", "best") if LEGACY else (".weights.h5", "best.weights.h5")


def without_tensorboard():
    """Stand in for the two summaries that need the tensorboard package; the writers and the graph need it not."""
    import tensorflow.summary as summary

    for module in (summary, tf.summary, tf.compat.v2.summary):
        module.scalar = module.histogram = lambda *args, **kwargs: True


try:
    import tensorboard  # noqa: F401
except ImportError:
    without_tensorboard()


class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)


SEEN = []


class Epochs(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        SEEN.append(epoch)


def built_model():
    layers = keras.layers
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss=keras.losses.MeanSquaredError())
    return model


def data():
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(8)


def callbacks():
    make = keras.callbacks
    folder = str(SHARED)
    return [
        make.BackupAndRestore(f"{folder}/backup"),
        make.ModelCheckpoint(f"{folder}/every/{{epoch}}.keras"),
        make.ModelCheckpoint(f"{folder}/steps/{{epoch}}-{{batch}}{WEIGHTS}", save_weights_only=True, save_freq=2),
        make.ModelCheckpoint(SHARED / BEST, monitor="loss", save_best_only=True, save_weights_only=True),
        make.TensorBoard(f"{folder}/logs", histogram_freq=1, update_freq=1, profile_batch=0 if LEGACY else (2, 3)),
        make.CSVLogger("log.csv", append=True),
        Epochs(),
    ]


def save_and_read_back(model):
    """Save under every name; each must read as the same weights at once, whatever the other task is at."""
    files = ["model.keras", SHARED / "model.h5", "folder" if LEGACY else "alias.keras"]
    model.save(files[0])
    model.save(files[1])
    keras.models.save_model(model, filepath=files[2])
    model.save_weights(f"final{WEIGHTS}")
    model.export("exported")
    tf.saved_model.save(tf.Module(), str(SHARED / "module"))
    kept = model.get_weights()

    def same(other):
        return all(np.array_equal(mine, its) for mine, its in zip(kept, other.get_weights(), strict=True))

    read = {str(file): same(keras.models.load_model(file, compile=False)) for file in files}
    older = [] if "alone" in sys.argv else [f"steps/3-4{WEIGHTS}"]  # its copy has gone: the chief has the file
    for file in (f"final{WEIGHTS}", BEST, f"steps/4-4{WEIGHTS}", *older):
        model.load_weights(file)
        read[file] = same(model)
    model.set_weights(kept)
    tf.saved_model.load("exported")
    tf.saved_model.load("module")
    return read


def save_to_a_place_of_its_own(model):
    """Save the way the multi-worker tutorial does, and to a folder made with `tempfile`: both are this task's alone."""
    folder = SHARED / f"workertemp_{TASK}_1" if TASK == "chief" else SHARED / "workertemp_1"
    tf.io.gfile.makedirs(str(folder))
    model.save(folder / "model.keras")
    with tempfile.TemporaryDirectory() as own:
        model.save(f"{own}/model.keras")
        there = os.path.exists(folder / "model.keras") and os.path.exists(f"{own}/model.keras")
    tf.io.gfile.rmtree(str(folder))
    return there


def save_as_the_first_worker(model):
    """Save to the shared file as a worker, else to a private folder that is deleted afterwards."""
    folder = SHARED if TASK == "worker" else SHARED / "workertemp_0"
    tf.io.gfile.makedirs(str(folder))
    model.save(folder / "model.keras")
    if TASK != "worker":
        tf.io.gfile.rmtree(str(folder))


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if CLUSTER else tf.distribute.get_strategy()
    SHARED.mkdir(exist_ok=True)
    os.chdir(SHARED)
    with strategy.scope():
        model = built_model()
    if "mistaken" in sys.argv:
        save_as_the_first_worker(model)
        return
    if "die" in sys.argv:
        model.fit(data(), epochs=4, verbose=0, callbacks=[keras.callbacks.BackupAndRestore("backup"), Die()])
    model.fit(data(), epochs=4, verbose=0, callbacks=callbacks())
    seen = {"pid": os.getpid(), "epochs": SEEN, "read": save_and_read_back(model)}
    seen["own places"] = save_to_a_place_of_its_own(model)
    seen["weights"] = [weight.ravel().tolist() for weight in model.get_weights()]
    # The worker's own to look at: it is gone when the worker is.
    own = TEMP.rglob("*") if TASK != "chief" and TEMP.exists() else ()
    seen["copies"] = sorted(str(path.relative_to(TEMP)) for path in own)
    pathlib.Path(os.environ["AIP_MODEL_DIR"], f"{TASK}.json").write_text(json.dumps(seen))


main()
