"""The tutorials that people bring, run unmodified: docs/reference/tensorflow-tutorials.md is the outcome."""
