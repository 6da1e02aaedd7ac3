"""The records of a run, and the states, explanations and decisions that follow from them."""
