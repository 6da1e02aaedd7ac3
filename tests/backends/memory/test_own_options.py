"""Options of an own backend take nothing from a built-in one, from a job's settings or from a backend of the same name."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import sdk
from sdk import backends
from sdk.job import option_classes
from sdk.job.targets import Target
from sdk.planning.settings import table
from sdk.testing.fake_backend import FakeBackend


@dataclass(frozen=True, kw_only=True)
class Own(Target):
    steps: int = 3


@dataclass(frozen=True, kw_only=True)
class Derived(sdk.Vertex):
    pass


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backends, "_registered", {})
    monkeypatch.setattr(option_classes, "LOADERS", {**option_classes.LOADERS})
    yield


def test_options_derived_from_a_clouds_options_belong_to_their_own_backend() -> None:
    backends.register("derived", FakeBackend, options=Derived)
    assert option_classes.backend_of(Derived()) == "derived"
    assert option_classes.backend_of(sdk.Vertex()) == "vertex"


@pytest.mark.parametrize("name", ["code", "resources", "limit", "limits", "my_own", "my-own", ""])
def test_a_name_with_the_settings_of_another_backend_is_refused(name: str) -> None:
    with pytest.raises(sdk.InputError, match="choose another name"):
        backends.register(name, FakeBackend, options=Own)
    assert name not in backends.names()


def test_a_field_that_would_replace_a_setting_of_a_job_is_an_error() -> None:
    backends.register("max", FakeBackend, options=Own)
    with pytest.raises(sdk.InputError, match="rename its field 'steps'"):
        table.settings()


def test_a_backend_without_services_is_named_with_the_line_that_it_lacks() -> None:
    backends.register("own", lambda: object())  # type: ignore[arg-type, return-value]
    with pytest.raises(sdk.InputError, match=r"'own' has no services\. Next: .*services = Services\(\)"):
        list(backends.offered())


def test_a_backend_registered_again_without_options_has_none() -> None:
    backends.register("own", FakeBackend, options=Own)
    backends.register("own", FakeBackend)
    assert "own_steps" not in table.settings()


def test_a_plan_names_no_library_whose_version_the_backend_does_not_know(write) -> None:
    backends.register("own", FakeBackend)
    text = str(sdk.plan(write("train.py", "print(1)"), backend="own"))
    assert re.search(rf"python +{re.escape(platform.python_version())}, as here\n", text), text
