"""What the talk of 2018 shows and TensorFlow no longer has, one attempt for each argument."""

import sys

import spots
import tensorflow as tf


def compile_with_a_strategy() -> None:
    spots.classifier().compile(loss="mse", optimizer="sgd", distribute=tf.distribute.MirroredStrategy(["CPU:0"]))


def estimator_from_keras() -> None:
    tf.keras.estimator.model_to_estimator(spots.classifier())


def run_config() -> None:
    tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy(["CPU:0"]))


def contrib_all_reduce() -> None:
    tf.contrib.distribute.CollectiveAllReduceStrategy(num_gpus_per_worker=0)


def tpu_steps_per_run() -> None:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    tf.distribute.TPUStrategy(resolver, steps_per_run=100)


def saved_model_folder() -> None:
    spots.classifier().save("a-folder")


def standalone_client() -> None:
    tf.contrib.distribute.DistributeConfig(remote_cluster={"worker": ["localhost:1"]})


globals()[sys.argv[1]]()
