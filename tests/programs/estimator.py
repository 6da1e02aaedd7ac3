"""A linear model by tf.estimator.train_and_evaluate on generated data: TF_CONFIG says who this process is.

Needs TensorFlow up to 2.15, the last one that has tf.estimator.
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf

WEIGHTS = np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)


def data(seed: int, batch: int, repeat: bool) -> tf.data.Dataset:
    random = np.random.default_rng(seed)
    x = random.normal(size=(1024, 4)).astype(np.float32)
    found = tf.data.Dataset.from_tensor_slices((x, x @ WEIGHTS + 0.25)).batch(batch, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return (found.repeat() if repeat else found).with_options(options)


def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tf.estimator.EstimatorSpec:
    weights = tf.compat.v1.get_variable("weights", [4, 1], initializer=tf.compat.v1.zeros_initializer())
    bias = tf.compat.v1.get_variable("bias", [1], initializer=tf.compat.v1.zeros_initializer())
    predicted = features @ weights + bias
    loss = tf.reduce_mean(tf.square(predicted - labels))
    if mode == tf.estimator.ModeKeys.EVAL:
        error = tf.compat.v1.metrics.mean_absolute_error(labels, predicted)
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"mae": error})
    step = tf.compat.v1.train.get_or_create_global_step()
    train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--model-dir", default=os.environ.get("AIP_MODEL_DIR", "model"))
    args = parser.parse_args()
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    me = config.get("task", {}).get("type", "chief")
    told = {"task": me, "cluster": sorted(config.get("cluster", {})), "tensorflow": tf.__version__}
    print(json.dumps(told), flush=True)
    several = len(config.get("cluster", {})) > 1
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several and me != "evaluator" else None
    options = {"train_distribute": strategy, "save_checkpoints_steps": 100, "tf_random_seed": 1}
    run = tf.estimator.RunConfig(model_dir=args.model_dir, **options)
    estimator = tf.estimator.Estimator(model_fn, config=run)
    train = tf.estimator.TrainSpec(lambda: data(1, args.batch, repeat=True), max_steps=args.steps)
    at_once = {"steps": None, "start_delay_secs": 0, "throttle_secs": 0}
    evaluate = tf.estimator.EvalSpec(lambda: data(2, args.batch, repeat=False), **at_once)
    tf.estimator.train_and_evaluate(estimator, train, evaluate)
    if me != "worker":
        saved = tf.train.load_checkpoint(args.model_dir)
        error = float(np.abs(saved.get_tensor("weights") - WEIGHTS).max())
        done = {"done": me, "step": int(saved.get_tensor("global_step")), "error": round(error, 4)}
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
