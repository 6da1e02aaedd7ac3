"""Generated data: points, and whether they lie in a circle."""

import numpy as np


def batches(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    points = np.random.default_rng(seed).uniform(-1, 1, size=(count * 32, 2)).astype("float32")
    return points, (np.square(points).sum(axis=1) < 0.6).astype("float32")
