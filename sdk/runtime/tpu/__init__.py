"""TPUs: a stand-in made of CPU devices for machines without one, and preparations for machines with one.

`install` puts the stand-in behind TensorFlow's own TPU names; `devices` is its hardware, `replicas` runs a step on it.
`host` prepares a machine that has a TPU. The reasoning: docs/explanation/decisions/stand-ins.md.
"""
