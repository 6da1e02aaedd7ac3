"""TPUs: what a program for one runs on where there is none, and what it needs where there is one.

`install` puts the stand-in behind TensorFlow's own TPU names; `devices` is its hardware, `replicas` runs a step on it.
`host` prepares a machine that has the real thing. The reasoning: docs/explanation/decisions/tpu-stand-in.md.
"""
