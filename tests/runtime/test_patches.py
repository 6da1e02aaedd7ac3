"""A cure runs once, right after the module that it changes has been imported."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
from support import heard

from sdk.job.payload import Payload
from sdk.job.policies import Checkpoints, Limits
from sdk.runtime.patches import Patch, devices, install


@pytest.fixture
def awaited(tmp_path, monkeypatch):
    """A module that is not imported yet, and what its cure has seen of it."""
    (tmp_path / "awaited_by_a_cure.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = []
    patch = Patch(
        name="test",
        why="",
        module="awaited_by_a_cure",
        applies=lambda module: True,
        needed=lambda module: True,
        apply=lambda module: seen.append(module.ready),
    )
    install([patch])
    yield seen
    sys.modules.pop("awaited_by_a_cure", None)


def test_a_cure_sees_the_finished_module(awaited):
    assert awaited == []
    importlib.import_module("awaited_by_a_cure")
    assert awaited == [True]


def test_a_search_that_imports_nothing_does_not_use_up_the_cure(awaited):
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

    always = lambda module: True  # noqa: E731
    cure = Patch(name="mine", why="because", module="curable_thing", applies=always, needed=always, apply=broken)
    install([cure])
    import curable_thing

    assert curable_thing.VALUE == 1
    assert lines == ["patch mine failed and may be applied in part: KeyError: 'upstream moved it'"]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ([], "local"),
        ([None], "local"),
        ([""], "local"),
        (["local"], "local"),
        (["node-7"], "local"),
        (["node-8"], "node-8"),
        (["grpc://10.0.0.2:8470"], "grpc://10.0.0.2:8470"),
    ],
)
def test_on_the_machine_of_a_tpu_a_resolver_without_another_name_means_that_machine(
    given: list[str | None], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resolver:
        def __init__(self, tpu: str | None = None, zone: str | None = None) -> None:
            self.tpu, self.zone = tpu, zone

    resolvers, util = ModuleType("resolvers"), ModuleType("util")
    resolvers.TPUClusterResolver = Resolver  # type: ignore[attr-defined]
    util.initialize_tpu_system_impl = lambda: None  # type: ignore[attr-defined]
    place = "tensorflow.python.distribute.cluster_resolver.tpu.tpu_cluster_resolver"
    monkeypatch.setitem(sys.modules, place, resolvers)
    monkeypatch.setitem(sys.modules, "tensorflow.python.tpu.tpu_strategy_util", util)
    environ = {"TPU_CONFIG": '{"project": "tenant-tp", "zone": "us-central1-b", "tpu_node_name": "node-7"}'}
    fields: dict[str, Any] = {
        "run_id": "r", "run_url": "/r", "attempt": 1, "kind": "script", "target": "t.py", "function": "", "argv": [],
        "kwargs": {}, "bundle": "b", "digest": "d", "roots": [], "tasks": ["chief-0"], "writes": "chief",
        "limits": Limits(), "checkpoints": Checkpoints(), "tpu": "v3-8",
    }  # fmt: skip
    devices.tpu_patches(Payload(**fields), environ)[0].apply(ModuleType("tensorflow"))
    made = Resolver(*given, zone="us-central1-b")
    assert (made.tpu, made.zone) == (asked, "us-central1-b")
