"""The records of a run, and what follows from them."""
