"""Serves everything that the emulator knows on one port of the loopback interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import uvicorn

from ..clock import Clock, SystemClock
from ..process.redirect import tokens
from ..storage import posix
from . import app
from .door import AccessMiddleware
from .gcs.app import StorageApp
from .gcs.faults import StorageFault, StorageFaults
from .gcs.journal import Journal
from .gcs.replies import Connections
from .gcs.server import bind, listen, make_buckets, make_server
from .gcs.state import StorageState
from .vertex.app import VertexApp, VertexService
from .vertex.faults import VertexFault
from .vertex.gangs import OpenLauncher, ProcessLauncher
from .vertex.states import JobTimings

FaultScript = tuple[Sequence[StorageFault], Sequence[VertexFault]]


def serve(
    folder: Path,
    *,
    port: int,
    announce: Callable[[str], None],
    faults: FaultScript = ((), ()),
    buckets: Sequence[str] = (),
    launcher: OpenLauncher | None = None,
    timings: JobTimings | None = None,
    capacity: int = 64,
    frozen: bool = False,
) -> None:
    """Serve until a signal ends it.

    Args:
        folder: where everything is kept; made if it is not there.
        port: 0 for any free one.
        announce: called with the URL, whose path is the token, before a connection is accepted; who connects at once waits.
        faults: what goes wrong from the beginning, in Cloud Storage and with custom jobs.
        buckets: made unless they are there, see `make_buckets`.
        launcher: what runs the containers of jobs; processes of this machine unless you say otherwise.
        timings: how long the phases of a job take.
        capacity: how many replicas run at the same time; further jobs wait in the queue.
        frozen: whether the time of jobs stands still until a request moves it.

    Raises:
        InputError: the folder, the port or a bucket cannot be used.
    """
    with closing(bind(port)) as listener:
        bound = listener.getsockname()[1]
        options = {"launcher": launcher, "timings": timings, "capacity": capacity, "frozen": frozen}
        with prepared(folder, bound, faults=faults, buckets=buckets, **options) as (server, url):  # type: ignore[arg-type]
            listen(listener)
            announce(url)
            server.run(sockets=[listener])


@contextmanager
def prepared(
    folder: Path,
    port: int,
    *,
    launcher: OpenLauncher | None = None,
    faults: FaultScript = ((), ()),
    buckets: Sequence[str] = (),
    timings: JobTimings | None = None,
    capacity: int = 64,
    frozen: bool = False,
    clock: Clock | None = None,
) -> Iterator[tuple[uvicorn.Server, str]]:
    """Yield a server that was not started yet, and its URL; what it serves belongs to the thread that runs the block."""
    clock = clock or SystemClock()
    opened = launcher or (lambda state, loop, url: ProcessLauncher(folder / "vertex", state, loop, url))
    with closing(StorageState(folder, clock)) as state:
        posix.mark(folder, posix.EMULATED)
        (folder / posix.MARKER).chmod(0o600)
        make_buckets(state, buckets)
        rules, connections, journal = StorageFaults(), Connections(), Journal()
        rules.replace(faults[0])
        vertex = VertexService(folder / "vertex", clock, _has(state), timings=timings, capacity=capacity, frozen=frozen)
        vertex.faults.replace(faults[1])
        token = tokens.load_or_create(folder)
        url = f"http://127.0.0.1:{port}/{token}"
        try:
            storage = StorageApp(state, rules, connections, journal)
            jobs = VertexApp(vertex, connections, journal)
            made = app.EmulatorApp(storage, rules, jobs, vertex, lambda loop: opened(state, loop, url))
            yield make_server(AccessMiddleware(made, token, connections), connections, lifespan=True), url
        finally:
            vertex.close()


def _has(state: StorageState) -> Callable[[str], bool]:
    return lambda bucket: any(each.name == bucket for each in state.buckets())
