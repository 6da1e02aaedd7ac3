"""SIGTERM reaches a task whose workers TensorFlow has connected; `container/test_training.py` has the real thing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest

from sdk.runtime.patches import sigterm


class Extended:
    """As TensorFlow's, which installs a handler when it connects the workers."""

    def _initialize_multi_worker(self, resolver: str) -> str:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        if resolver == "lost":
            raise ConnectionError("no peer")
        return resolver


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    own = type("Extended", (Extended,), {})
    strategy = SimpleNamespace(CollectiveAllReduceExtended=own)
    monkeypatch.setattr(sigterm.importlib, "import_module", lambda name: strategy)
    for patch in sigterm.patches():
        patch.apply(ModuleType("tensorflow"))
    before = signal.getsignal(signal.SIGTERM)
    yield own()._initialize_multi_worker
    signal.signal(signal.SIGTERM, before)


def test_the_handler_before_the_connection_holds_after_it(connect: Callable[[str], str]) -> None:
    for handler in (signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None):
        signal.signal(signal.SIGTERM, handler)
        assert connect("resolver") == "resolver"
        assert signal.getsignal(signal.SIGTERM) is handler


def test_it_holds_after_a_connection_that_failed(connect: Callable[[str], str]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(ConnectionError):
        connect("lost")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_strategy_can_be_made_in_another_thread(connect: Callable[[str], str]) -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(connect("resolver")))
    thread.start()
    thread.join()
    assert found == ["resolver"]
