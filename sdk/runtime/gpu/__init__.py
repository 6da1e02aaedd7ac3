"""GPUs: a stand-in made of logical CPU devices for machines without them. docs/explanation/decisions/stand-ins.md.

`devices` has the logical devices, which the stand-in for a TPU uses too; `install` puts them behind TensorFlow's names of GPUs.
"""
