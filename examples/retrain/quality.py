"""Measures a model for its gate, which compares it with the champion."""

import keras
import numpy as np


def measure(model_folder: str, data: str) -> dict[str, float]:
    model = keras.saving.load_model(f"{model_folder}/model.keras")
    rows = np.load(data)
    images, labels = rows["images"], rows["labels"]
    right = model.predict(images, verbose=0).argmax(axis=1) == labels
    loss = model.evaluate(images, labels, verbose=0, return_dict=True)["loss"]
    return {"accuracy": right.mean(), "accuracy[eights]": right[labels == 8].mean(), "loss": loss}
