"""How tasks connect to the first one's server: when it listens, and with a SIGTERM that ends them still.

`container/test_training.py` has the real thing.
"""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest

from sdk.runtime.patches import servers

PAIR = ("chief-0", "worker-0")


def connecting(task: str, extended: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch a class in place of TensorFlow's, in this task of two."""
    strategy = SimpleNamespace(CollectiveAllReduceExtended=extended)
    monkeypatch.setattr(servers.importlib, "import_module", lambda name: strategy)
    (patch,) = servers.patches(task, PAIR)
    patch.apply(ModuleType("tensorflow"))


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A port that is held and refuses connections, as the supervisor leaves it to the first task."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


def config(server: socket.socket) -> str:
    first = f"127.0.0.1:{server.getsockname()[1]}"
    return json.dumps({"cluster": {"chief": [first], "worker": ["127.0.0.1:1"]}, "task": {}})


def test_a_task_waits_until_the_first_one_listens_and_goes_on_at_once(server, monkeypatch) -> None:
    monkeypatch.setenv("TF_CONFIG", config(server))
    tasks, listening = [], threading.Event()

    class Extended:
        def _initialize_multi_worker(self, resolver: str) -> str:
            tasks.append(listening.is_set())
            return resolver

    connecting("worker-0", Extended, monkeypatch)

    timer = threading.Timer(0.3, lambda: (listening.set(), server.listen()))
    timer.start()
    begun = time.monotonic()
    assert Extended()._initialize_multi_worker("resolver") == "resolver"
    assert tasks == [True]
    assert time.monotonic() - begun < 10
    timer.join()


def test_a_cluster_that_cannot_be_read_is_left_to_tensorflow() -> None:
    for text in ("", "{", "{}", '{"cluster": {}}', '{"cluster": {"chief": []}}', '{"cluster": {"chief": ["x"]}}'):
        servers.await_first_server(text)


def test_a_first_task_that_does_not_come_is_left_to_tensorflow(server) -> None:
    begun = time.monotonic()
    servers.await_first_server(config(server), longest_s=0.1)
    assert 0.1 <= time.monotonic() - begun < 30


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    class Extended:
        """As TensorFlow's, which installs a handler when it connects the workers."""

        def _initialize_multi_worker(self, resolver: str) -> str:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, lambda number, frame: None)
            if resolver == "lost":
                raise ConnectionError("no peer")
            return resolver

    connecting("chief-0", Extended, monkeypatch)
    before = signal.getsignal(signal.SIGTERM)
    yield Extended()._initialize_multi_worker
    signal.signal(signal.SIGTERM, before)


def test_the_handler_before_the_connection_holds_after_it_also_if_it_failed(connect: Callable[[str], str]) -> None:
    for handler in (signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None):
        signal.signal(signal.SIGTERM, handler)
        assert connect("resolver") == "resolver"
        assert signal.getsignal(signal.SIGTERM) is handler
        with pytest.raises(ConnectionError):
            connect("lost")
        assert signal.getsignal(signal.SIGTERM) is handler


def test_a_strategy_can_be_made_in_another_thread(connect: Callable[[str], str]) -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(connect("resolver")))
    thread.start()
    thread.join()
    assert found == ["resolver"]
