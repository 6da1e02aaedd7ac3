"""Replicas of a TPU that have parts of a batch of different size, or none, give the numbers of one device."""

from pathlib import Path

import pytest
from agreements import assert_as_one
from support import PROGRAMS, needs

import sdk

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]
needs("tensorflow")

SCRIPT = PROGRAMS / "agreement.py"
CASES = [
    "dense_sgd-fit-tiny_last",
    "conv_adam-fit-tiny_last",
    "attention_adamw",
    "attention_global_clipnorm",
    "attention_clipnorm",
    "masked_loss",
    "mean_with_sample_weight",
    "synchronized_batch_norm",
    "static_batches",
    "two_outputs_and_regularizers",
    "fewer_examples_than_tasks",
    "dense_sgd-loop-uneven",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    words = ["one,tpu", *CASES, "attention_mixed_bfloat16"]
    job = sdk.Job(SCRIPT, args=words, resources=sdk.Resources(accelerator="v5e-8"))
    return Path(sdk.submit(job, root=tmp_path_factory.mktemp("parts")).result(1200).model_dir)


@pytest.mark.parametrize("case", CASES)
def test_weights_and_predictions_equal_the_ones_of_one_device(trained, case):
    assert_as_one(trained / "one", trained / "tpu", case, 2e-5)


def test_mixed_bfloat16_is_as_close_as_its_digits(trained):
    assert_as_one(trained / "one", trained / "tpu", "attention_mixed_bfloat16", 5e-2)
