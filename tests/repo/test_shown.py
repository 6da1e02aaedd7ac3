"""The default run has a test for each sentence of README's list, and for each row of "What can happen" in checkpoints.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from sources import files_with, tree_of
from support import REPO

pytestmark = pytest.mark.xdist_group("imports")


def promises() -> list[str]:
    """Return the sentences behind the bold heads of README's list, and the rows of the table without their bars."""
    section = (REPO / "README.md").read_text().partition("## From your machine to Vertex AI")[2].partition("\n## ")[0]
    bullets = [" ".join(text.split()) for text in section.split("\n- ")[1:]]
    whole = [
        re.sub(r"^\*\*(.*?\.)\*\* ", "", text).replace("**", "") for text in bullets
    ]  # a head that is a sentence is a title
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text) for text in whole]
    sentences = [
        sentence
        for text in plain
        for sentence in re.split(r"(?<=\.) (?=[A-Z`])", text)
        if not sentence.startswith("Five")
    ]
    page = (REPO / "docs" / "explanation" / "checkpoints.md").read_text()
    table = page.partition("## What can happen")[2].partition("\n## ")[0]
    return sentences + [line.strip("| ") for line in table.splitlines() if line.startswith("| ")][1:]


def shown_by_default() -> Iterator[str]:
    for path in files_with("mark.shows"):
        tree = tree_of(path)
        marks = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
        if any("mark.full" in ast.unparse(mark) for mark in marks):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "pytest.mark.full" not in map(ast.unparse, node.decorator_list):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.shows":
                        yield ast.literal_eval(call.args[0])


def test_each_promise_has_a_test_in_the_default_run_and_each_mark_a_promise() -> None:
    shown, every = set(shown_by_default()), promises()
    assert [promise for promise in every if not any(promise.startswith(beginning) for beginning in shown)] == []
    assert [beginning for beginning in shown if not any(promise.startswith(beginning) for promise in every)] == []
    assert len(every) >= 25
