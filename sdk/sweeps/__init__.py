"""Sweeps: many runs of one program that search the best values of its parameters."""
