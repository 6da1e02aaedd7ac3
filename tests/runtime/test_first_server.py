"""Tasks connect to the first one's server when it listens, and not a second later."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from sdk.runtime.patches import first_server


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A port that is held and refuses connections, as the supervisor leaves it to the first task."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


def config(server: socket.socket, role: str = "chief") -> str:
    return json.dumps(
        {"cluster": {role: [f"127.0.0.1:{server.getsockname()[1]}"], "worker": ["127.0.0.1:1"]}, "task": {}}
    )


def test_a_task_waits_until_the_first_one_listens_and_goes_on_at_once(server, monkeypatch) -> None:
    monkeypatch.setenv("TF_CONFIG", config(server))
    tasks, listening = [], threading.Event()

    class Extended:
        def _initialize_multi_worker(self, resolver: str) -> str:
            tasks.append(listening.is_set())
            return resolver

    strategy = SimpleNamespace(CollectiveAllReduceExtended=Extended)
    monkeypatch.setattr(first_server.importlib, "import_module", lambda name: strategy)
    for patch in first_server.patches():
        patch.apply(ModuleType("tensorflow"))

    def listen() -> None:
        listening.set()
        server.listen()

    timer = threading.Timer(0.3, listen)
    timer.start()
    begun = time.monotonic()
    assert Extended()._initialize_multi_worker("resolver") == "resolver"
    assert tasks == [True]
    assert time.monotonic() - begun < 10
    timer.join()


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '{"cluster": {}}', '{"cluster": {"chief": []}}', '{"cluster": {"chief": ["x"]}}']
)
def test_a_cluster_that_cannot_be_read_is_left_to_tensorflow(text: str) -> None:
    first_server.await_first_server(text)


def test_a_first_task_that_does_not_come_is_left_to_tensorflow(server) -> None:
    begun = time.monotonic()
    first_server.await_first_server(config(server), longest_s=0.1)
    assert 0.1 <= time.monotonic() - begun < 30
