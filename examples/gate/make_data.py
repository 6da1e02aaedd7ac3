"""Writes train.npz and test.npz: scikit-learn's handwritten digits, 8x8 images, no download."""

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
images, labels = digits.data[order].astype("float32") / 16, digits.target[order]
np.savez("train.npz", images=images[300:], labels=labels[300:])
np.savez("test.npz", images=images[:300], labels=labels[:300])
