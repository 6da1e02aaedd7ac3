"""How long steps wait for their input, measured with an input that is made slow, beside the times that the steps see."""

import json

import pytest
from support import PROGRAMS, python

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]


def test_the_wait_of_steps_is_measured_within_a_tenth_for_every_way_to_take_batches() -> None:
    # One process, since TensorFlow's start costs more than all ways.
    found = json.loads(python(str(PROGRAMS / "input_waits.py")).splitlines()[-1])
    assert len(found["waits"]) == 5 and sum(way.startswith("fit") for way in found["waits"]) == 3
    for way, (measured, truth) in found["waits"].items():
        # A fit also waits for its first batch, as far as that is not made while it compiles.
        first_s = 0.4 if way.startswith("fit") else 0.0
        # Work of a strategy between two steps of a loop outside of functions counts in the truth alone.
        most = 0.3 if way == "a loop over distributed batches" else 0.1
        assert truth > 0.5, way
        assert truth * (1 - most) <= measured <= (truth + first_s) * 1.1, way
    assert found["unchanged"]
    # Ten batches of the training take 0.4 s each, less the work of 0.05 s; the six of a validation are its own.
    assert 3.0 < found["validated"] < 4.2
