"""All services of the emulator on one port: Cloud Storage, Vertex AI, Cloud Logging and the metadata server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..errors import InputError
from . import administration
from .gcs import app as gcs
from .gcs import faults as gcs_faults
from .gcs.faults import StorageFault, StorageFaults
from .vertex import app as vertex
from .vertex import faults as vertex_faults
from .vertex.faults import VertexFault
from .vertex.gangs import ReplicaLauncher


class EmulatorApp:
    """Sends every request to the service that it asks.

    Args:
        storage: Cloud Storage.
        rules: what goes wrong there.
        jobs: the other services.
        served: what stands behind them.
        launcher: makes what makes launcher, within the loop in whose thread the buckets may be read.
    """

    def __init__(
        self,
        storage: gcs.StorageApp,
        rules: StorageFaults,
        jobs: vertex.VertexApp,
        served: vertex.VertexService,
        launcher: Callable[[asyncio.AbstractEventLoop], ReplicaLauncher],
    ) -> None:
        self._storage, self._rules, self._jobs, self._served, self._launcher = storage, rules, jobs, served, launcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if scope["path"] == "/_faults" or (scope["path"], request.method) == ("/_reset", "POST"):
            await (await vertex.with_error_response(self._administer(request)))(scope, receive, send)
        elif scope["path"].startswith("/_vertex/"):
            await (await vertex.with_error_response(vertex.administer(self._served, request)))(scope, receive, send)
        elif self._jobs.serves(scope["path"], dict(request.headers)):
            await self._jobs(scope, receive, send)
        else:
            await self._storage(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Begin and end with the server; containers end while the loop runs, in whose thread their files become objects."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._served.start(self._launcher(asyncio.get_running_loop()))
            else:
                await asyncio.to_thread(self._served.close)
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _administer(self, request: Request) -> Response:
        """Answer what tests ask of all services."""
        body = await administration.read_body(request)
        if request.url.path == "/_reset":
            await asyncio.to_thread(self._served.clear)
            self._storage.clear()
        elif request.method == "POST":
            try:
                stored, run = parse(body)
            except InputError as error:
                return JSONResponse({"problems": list(error.problems)}, 400)
            self._rules.replace(stored)
            self._served.faults.replace(run)
            self._served.scheduler.release_held()
        elif request.method != "GET":
            return JSONResponse({"problems": [f"Unknown: {request.method} /_faults. Known: GET, POST."]}, 404)
        return JSONResponse({"faults": [*self._rules.to_json(), *self._served.faults.to_json()]})


def parse(script: bytes | str) -> tuple[list[StorageFault], list[VertexFault]]:
    """Return the faults of a script by service: those of custom jobs say "api": "vertex".

    Raises:
        InputError: one sentence for each mistake.
    """
    try:
        found = json.loads(script)
    except (ValueError, RecursionError) as error:
        raise InputError(f"The faults are no JSON: {error}.") from None
    if not isinstance(found, list):
        raise InputError(f"The faults are a JSON list of objects. Received: {type(found).__name__}.")
    of_jobs: list[Any] = [each for each in found if _api(each) == "vertex"]
    of_storage = [_without_api(each) for each in found if _api(each) != "vertex"]
    problems: list[str] = []
    stored: list[StorageFault] = []
    run: list[VertexFault] = []
    try:
        stored = gcs_faults.parse(json.dumps(of_storage))
    except InputError as error:
        problems += error.problems
    try:
        run = vertex_faults.parse(of_jobs)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return stored, run


def _api(rule: Any) -> Any:
    return rule.get("api") if isinstance(rule, dict) else None


def _without_api(rule: Any) -> Any:
    """Return a rule of Cloud Storage, which may say so; any other word stays, and is refused as a field."""
    if isinstance(rule, dict) and rule.get("api") == "gcs":
        return {name: value for name, value in rule.items() if name != "api"}
    return rule
