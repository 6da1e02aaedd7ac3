"""The ways to save a Keras model and its optimizer that podlift is compared with, each as its documentation has it.

`save(step)` returns when the training may go on, `wait()` when everything has its final name, `restore(model)` puts the
newest one back. `seen()` tells what has its final name by now, from outside: the time at which a saved step got it.
"""

import glob
import os

import keras
import numpy as np
import tensorflow as tf
from saving_model import variables


class Way:
    """Saves in the calling thread, unless it says otherwise."""

    background = False
    pattern = ""

    def __init__(self, model, folder):
        self.model, self.folder = model, folder
        self.begin()

    def begin(self):
        pass

    def wait(self):
        pass

    def callback(self, every):
        """Return what saves in a `fit`."""

        def save(batch, logs):
            if (batch + 1) % every == 0:
                self.save(batch + 1)

        return keras.callbacks.LambdaCallback(on_train_batch_end=save)

    def seen(self):
        found = {}
        for path in glob.glob(os.path.join(self.folder, self.pattern)) if self.pattern else ():
            try:
                # A rename or a link is a change of the file's entry, not of its content.
                found[path] = os.stat(path).st_ctime
            except FileNotFoundError:
                continue
        return found


class Podlift(Way):
    """As it is in a run: nothing of it is in the program."""

    background = True
    pattern = "runs/*/store/commits/*/*.json"

    def callback(self, every):
        return keras.callbacks.Callback()


class Bucket(Podlift):
    """The same, with the run in the bucket that SAVING_ROOT names."""

    def begin(self):
        from sdk.storage.gcs.files import BucketFiles

        self.files = BucketFiles(os.environ["SAVING_ROOT"])

    def seen(self):
        return self.files.matching("runs/*/store/commits/*/*.json")


class Direct(Way):
    """podlift's own parts as a run has them, without the run."""

    background = True
    pattern = "commits/*/*.json"

    def begin(self):
        from sdk.checkpoint import opening
        from sdk.checkpoint.opening import OpenStore, TaskInfo
        from sdk.checkpoint.saver import AsyncSaver
        from sdk.checkpoint.tf import snapshot
        from sdk.clock import SystemClock
        from sdk.job.policies import Checkpoints
        from sdk.storage.posix_store import PosixStore

        clock, self.store = SystemClock(), PosixStore(self.folder)
        found = opening.open_first(self.store, 1, "benchmark", clock)
        info = TaskInfo(run_id="", attempt=1, task="chief-0", tasks=("chief-0",))
        self.saver = AsyncSaver(OpenStore(store=self.store, opening=found, info=info, policy=Checkpoints(keep_last=2)))
        self.variables = snapshot.variables_of(model=self.model)

    def save(self, step):
        from sdk.checkpoint.contents import Contents
        from sdk.checkpoint.tf import loading, randomness, snapshot

        blobs = {"own": loading.replica_values(self.variables), "random": randomness.capture()}
        contents = Contents(arrays=snapshot.take(self.variables), blobs=blobs)
        self.ticket = self.saver.save(contents, step=step, reason="manual")

    def wait(self):
        self.commit = self.ticket.wait().key

    def restore(self):
        from sdk.checkpoint import restore
        from sdk.checkpoint.tf import loading

        self.saver.wait()
        found = restore.read(self.store, self.commit)
        own = {rank: blobs["own"] for rank, blobs in found.blobs.items()}
        loading.load(self.variables, found.arrays, per_replica=own)


class Checkpoints(Way):
    """tf.train.CheckpointManager."""

    options = None
    pattern = "*.index"

    def begin(self):
        # Of TensorFlow's variables: with `model=model` the background one fails ("only supports singleton tf.Variables").
        self.checkpoint = tf.train.Checkpoint(variables=[v.value for v in variables(self.model)])
        self.manager = tf.train.CheckpointManager(self.checkpoint, self.folder, max_to_keep=2)

    def save(self, step):
        self.manager.save(options=self.options)

    def restore(self):
        self.checkpoint.restore(self.manager.latest_checkpoint).assert_existing_objects_matched()


class AsyncCheckpoints(Checkpoints):
    """The same in the background."""

    background = True
    options = tf.train.CheckpointOptions(enable_async=True)

    def wait(self):
        self.checkpoint.sync()


class AsyncInBucket(AsyncCheckpoints):
    """The same in the bucket that SAVING_ROOT names, by TensorFlow's own client."""

    def begin(self):
        from sdk.storage.gcs.files import BucketFiles

        self.files, self.folder = BucketFiles(os.environ["SAVING_ROOT"]), f"{os.environ['SAVING_ROOT']}/tensorflow"
        super().begin()

    def seen(self):
        return self.files.matching("tensorflow/*.index")


class Backup(Way):
    """keras.callbacks.BackupAndRestore."""

    def callback(self, every):
        return keras.callbacks.BackupAndRestore(self.folder, save_freq=every)

    def begin(self):
        self.backup = keras.callbacks.BackupAndRestore(self.folder, save_freq=1)
        self.backup.set_model(self.model)
        self.backup.on_epoch_begin(0)

    def save(self, step):
        self.backup.on_train_batch_end(step)

    def restore(self):
        self.backup.on_train_begin()


class Whole(Way):
    """model.save."""

    def save(self, step):
        self.model.save(os.path.join(self.folder, "model.keras"))

    def restore(self):
        loaded = keras.models.load_model(os.path.join(self.folder, "model.keras"))
        self.model = loaded


class Orbax(Way):
    """Orbax's CheckpointManager, in the background, with the variables as NumPy arrays."""

    background = True
    pattern = "[0-9]*"

    def begin(self):
        import orbax.checkpoint as ocp

        self.args = ocp.args
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
        self.manager = ocp.CheckpointManager(os.path.abspath(self.folder), options=options)

    def state(self):
        return {v.path.replace("/", "."): np.asarray(v.value) for v in variables(self.model)}

    def save(self, step):
        self.manager.save(step, args=self.args.StandardSave(self.state()))

    def wait(self):
        self.manager.wait_until_finished()

    def seen(self):
        return {path: when for path, when in super().seen().items() if os.path.basename(path).isdigit()}

    def restore(self):
        found = self.manager.restore(self.manager.latest_step(), args=self.args.StandardRestore(self.state()))
        for variable in variables(self.model):
            variable.assign(found[variable.path.replace("/", ".")])


WAYS = {
    "podlift": Podlift,
    "bucket": Bucket,
    "direct": Direct,
    "tf": Checkpoints,
    "tf-async": AsyncCheckpoints,
    "tf-bucket": AsyncInBucket,
    "backup": Backup,
    "keras": Whole,
    "orbax": Orbax,
}
