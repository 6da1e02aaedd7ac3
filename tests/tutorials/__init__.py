"""The tutorials that people bring, run unmodified: docs/tutorials.md is the outcome."""
