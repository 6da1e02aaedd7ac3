"""The part of a checkpoint that needs TensorFlow: variables, positions in the data, states of Keras."""
