"""A cure runs once, right after the module that it changes has been imported."""

import importlib
import importlib.util
import sys

import pytest
from support import heard

from sdk.runtime.patches import Patch, install


@pytest.fixture
def awaited(tmp_path, monkeypatch):
    """A module that is not imported yet, and its states at the calls of its cure."""
    (tmp_path / "awaited_by_a_cure.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = []
    install([Patch(name="test", why="", module="awaited_by_a_cure", apply=lambda module: seen.append(module.ready))])
    yield seen
    sys.modules.pop("awaited_by_a_cure", None)


def test_a_cure_sees_the_finished_module_also_after_a_search_that_imports_nothing(awaited):
    assert importlib.util.find_spec("awaited_by_a_cure") is not None
    assert awaited == []
    importlib.import_module("awaited_by_a_cure")
    assert awaited == [True]


def test_a_cure_that_breaks_does_not_break_the_users_import(tmp_path, monkeypatch):
    (tmp_path / "curable_thing.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = heard()

    def broken(module):
        raise KeyError("upstream moved it")

    install([Patch(name="mine", why="because", module="curable_thing", apply=broken)])
    import curable_thing

    assert curable_thing.VALUE == 1
    assert lines == ["patch mine failed and may be applied in part: KeyError: 'upstream moved it'"]
