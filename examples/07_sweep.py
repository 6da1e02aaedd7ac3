"""Search the best parameters of a training with eight runs, two at a time. Run: python examples/07_sweep.py"""

import keras
from sklearn.datasets import load_digits

import sdk


def train(rate, units):
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    model = keras.Sequential([keras.layers.Dense(units, "relu"), keras.layers.Dense(10, "softmax")])
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images / 16, labels, epochs=9, validation_split=0.2, verbose=0)


if __name__ == "__main__":
    space = {"rate": sdk.LogUniform(1e-4, 1e-1), "units": sdk.Choice(16, 64)}
    # Bad trials stop early: of each rung, the best third goes on. Called again, it continues the sweep of this name.
    sweep = sdk.sweep(train, space, metric="val_accuracy", trials=8, parallel=2, pruner="asha", name="digits")
    best = sweep.wait()
    for trial in sweep.trials():
        print(trial.number, trial.state, trial.params, trial.value)
    print("best:", best.params, best.value)
