"""Runs as pictures: a report in one file, cells of a notebook, and a page on loopback, from one set of templates.

Data goes one way: `gather` reads a run into the typed view that `model` and `curves` define, and `pages` fills templates with
it. Everything that comes from a run is hostile: docs/explanation/decisions/pages.md.
"""
