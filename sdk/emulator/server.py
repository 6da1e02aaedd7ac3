"""Serves a data folder on one port of the loopback interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..clock import SystemClock
from ..errors import InputError, nearest
from ..process.redirect import tokens
from ..storage import posix
from ..ui.request_heads import backlog, bind, listen
from .access import AccessMiddleware
from .admin import Admin
from .builds.app import BuildsApp
from .connections import Connections, Journal
from .faults import Fault, FaultRules
from .gcs.app import StorageApp
from .gcs.bodies import check_bucket, check_bucket_fields
from .gcs.errors import StorageApiError
from .gcs.state import StorageState
from .project.app import ProjectApp
from .project.state import ProjectState
from .scheduler.app import SchedulerApp
from .secrets import SecretsApp
from .vertex.app import VertexApp
from .vertex.launcher import OpenLauncher, ProcessLauncher, ReplicaLauncher
from .vertex.lifecycle import JobTimings
from .vertex.referenced import References
from .vertex.timing import EmulatorClock

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Clients keep connections open, and meet a reset if they send at the very moment at which the server closes one.
_KEEP_ALIVE_S = 3600


class Options(TypedDict, total=False):
    """The options of an emulator.

    Args:
        faults: the first rules.
        buckets: made unless they exist, see `make_buckets`.
        timings: the durations of a job's stages; None for the defaults of `JobTimings`.
        capacity: the number of replicas that run at the same time; further jobs stay in the queue.
        frozen: whether the clock moves only by a request.
        launcher: opens the launcher for the containers of jobs; None for processes of this machine.
        keep_token: whether clients of the last server of the folder may continue; else each start has a new token.
    """

    faults: Sequence[Fault]
    buckets: Sequence[str]
    timings: JobTimings | None
    capacity: int
    frozen: bool
    launcher: OpenLauncher | None
    keep_token: bool


class EmulatorApp:
    def __init__(self, home: Path, url: str, state: StorageState, journal: Journal, options: Options) -> None:
        folder = home / "vertex"
        clock = EmulatorClock(SystemClock(), frozen=options.get("frozen", False))
        faults = FaultRules(clock.now)
        faults.replace(options.get("faults", ()))
        timings, capacity = options.get("timings") or JobTimings(), options.get("capacity", 64)
        project = ProjectState(home / "project.json")
        self._project = ProjectApp(project, faults, journal)
        self._storage = StorageApp(state, project, faults, journal)
        self._builds = BuildsApp(home / "builds", project, clock, faults, journal)
        outside = References(storage=state, project=project, registry=self._builds.stored, faults=faults)
        self._vertex = VertexApp(folder, outside, clock, timings, capacity, faults, journal)
        move = self._vertex.scheduler.advance
        self._scheduler = SchedulerApp(home / "scheduler", clock, faults, journal, move, url)
        self._secrets = SecretsApp(home / "secrets")
        self._admin = Admin(self._storage, self._vertex, self._scheduler, project, self._builds, faults, journal)
        launcher: OpenLauncher = options.get("launcher") or partial(ProcessLauncher, folder)
        self._open_launcher: Callable[[], ReplicaLauncher] = lambda: launcher(state, asyncio.get_running_loop(), url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"].startswith("/_"):
            await self._admin(scope, receive, send)
        elif self._scheduler.serves(scope["path"]):
            await self._scheduler(scope, receive, send)
        elif self._project.serves(scope["path"]):
            await self._project(scope, receive, send)
        elif self._builds.serves(scope["path"]):
            await self._builds(scope, receive, send)
        elif self._secrets.serves(scope["path"]):
            await self._secrets(scope, receive, send)
        elif self._vertex.serves(scope["path"], Headers(scope=scope)):
            await self._vertex(scope, receive, send)
        else:
            await self._storage(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Run jobs while the server runs. Containers end before the loop: its thread turns their files into objects."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._vertex.scheduler.start(self._open_launcher())
                self._scheduler.dispatcher.start()
            else:
                await asyncio.to_thread(self.close)
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    def close(self) -> None:
        self._scheduler.close()
        self._vertex.close()
        self._builds.close()


def serve(folder: Path, *, port: int, announce: Callable[[str], None], **options: Unpack[Options]) -> None:
    """Serve until a signal ends it.

    Args:
        folder: the data folder; made if it does not exist.
        port: 0 for any free one.
        announce: called with the URL, with the token as its path, before connections are accepted; early clients wait.
        options: see `Options`.

    Raises:
        InputError: the folder, the port or a bucket cannot be used.
    """
    with (
        closing(bind(port)) as listener,
        prepared(folder, listener.getsockname()[1], **options) as (server, url),
    ):
        listen(listener)
        announce(url)
        server.run(sockets=[listener])


@contextmanager
def prepared(folder: Path, port: int, **options: Unpack[Options]) -> Iterator[tuple[uvicorn.Server, str]]:
    """Yield a server that is not started yet, and its URL. Its state belongs to the thread that runs the block."""
    # Python does not check the keywords of an unpacked `TypedDict`.
    names = sorted(Options.__optional_keys__)
    if unknown := sorted(options.keys() - names):
        raise TypeError(f"Unknown option of the emulator: {unknown[0]!r}. {nearest(unknown[0], names)}")
    with closing(StorageState(folder, SystemClock())) as state:
        posix.mark(folder, posix.EMULATED)
        (folder / posix.MARKER).chmod(0o600)
        make_buckets(state, options.get("buckets", ()))
        token = tokens.create(folder, keep=options.get("keep_token", False))
        url = f"http://127.0.0.1:{port}/{token}"
        connections = Connections()
        try:
            with closing(EmulatorApp(folder, url, state, Journal(connections), options)) as app:
                yield make_server(AccessMiddleware(app, token, connections), connections, lifespan=True), url
        finally:
            if not options.get("keep_token", False):
                tokens.remove(folder, token)


def make_server(application: ASGIApp, connections: Connections, *, lifespan: bool = False) -> uvicorn.Server:
    """Return a server that is not started yet; with `lifespan` it notifies the application of its start and stop."""
    config = uvicorn.Config(
        application,
        http=connections.protocol(),
        ws="none",
        loop="asyncio",
        lifespan="on" if lifespan else "off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=backlog(),
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def make_buckets(state: StorageState, buckets: Sequence[str]) -> None:
    """Make the buckets that do not exist yet: NAME in several regions, Google's default; NAME@REGION in one."""
    locations = {name: location.upper() for name, _, location in (bucket.partition("@") for bucket in buckets)}
    try:
        for name in locations:
            check_bucket(name)
        for name, location in sorted(locations.items()):
            if not state.has_bucket(name):
                fields = {"location": location} if location else {}
                check_bucket_fields(fields)
                state.create_bucket(name, fields)
    except StorageApiError as error:
        raise InputError(error.message) from None
