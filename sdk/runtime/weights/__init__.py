"""Weights of saved models: which file holds them, and how they are loaded into a program's model, all of them or none."""
