"""Finds calls of TensorFlow and Keras for which neither of them installs the package: they fail once training has begun."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator, Mapping

from ... import text
from ...job.findings import Finding
from .import_sources import ImportSources
from .keras2 import guarded, imported
from .program import Import, Program

_KERAS = r"(?:tensorflow\.)?keras\."
# Import names by the full names of functions and classes.
_NEEDS = {
    re.compile(_KERAS + pattern if pattern[0] != "^" else pattern): module
    for pattern, module in (
        # TensorFlow installed it up to 2.20.
        (r"callbacks\.TensorBoard", "tensorboard"),
        (r"^tensorflow\.summary\.(?:audio|histogram|image|scalar|text)", "tensorboard"),
        (r"utils\.(?:plot_model|model_to_dot)", "pydot"),
        (r"callbacks\.RemoteMonitor", "requests"),
        (r"(?:preprocessing\.image|utils)\.(?:load_img|save_img|array_to_img)", "PIL"),
    )
}
_DOT = "dot"


def missing(program: Program, trees: Mapping[str, ast.Module], sources: ImportSources) -> list[Finding]:
    """Return a warning for each package that such calls need and a task may not find."""
    calls: dict[tuple[str, str], list[str]] = {}
    for file, tree in sorted(trees.items(), key=lambda item: (item[0] != program.entry.file, item[0])):
        for line, name, module in _calls(tree):
            places = [f"{program.location(file, line)} calls {name}"]
            for problem in sources.problems(Import(module, line)):
                calls.setdefault((module, problem.message), []).extend(places)
            if module == "pydot" and sources.uses_this_machine and shutil.which(_DOT) is None:
                message = "it is not installed here. Next: install Graphviz (apt-get install graphviz)."
                calls.setdefault((f"the program {_DOT!r}", message), []).extend(places)
    return [_finding(needed, message, places) for (needed, message), places in calls.items()]


def _finding(needed: str, message: str, places: list[str]) -> Finding:
    more = len(places) - 1
    like_it = f" (and {text.counted(more, 'more call')} like it)" if more else ""
    package = needed if " " in needed else f"the package {needed!r}, which TensorFlow does not install"
    return Finding("warning", f"{places[0]}{like_it}, which needs {package}: {message}")


def _calls(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line and the full name of each call, and the module that it imports."""
    names, skipped = imported(tree), guarded(tree)
    for node in ast.walk(tree) if names else ():
        if isinstance(node, ast.Call) and id(node) not in skipped:
            first, *rest = ast.unparse(node.func).split(".")
            full = ".".join([names.get(first, ""), *rest])
            for pattern, module in _NEEDS.items():
                if pattern.fullmatch(full):
                    yield node.lineno, full, module
