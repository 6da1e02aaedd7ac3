"""All services of the emulator on one port, and the requests to the emulator itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from .admin import Admin
from .gcs.app import StorageApp
from .vertex.app import VertexApp, VertexService
from .vertex.launcher import ReplicaLauncher


class EmulatorApp:
    """Routes every request to its service."""

    def __init__(
        self,
        storage: StorageApp,
        vertex: VertexApp,
        service: VertexService,
        admin: Admin,
        open_launcher: Callable[[asyncio.AbstractEventLoop], ReplicaLauncher],
    ) -> None:
        self._storage, self._vertex, self._service, self._admin = storage, vertex, service, admin
        self._open_launcher = open_launcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]}
        if self._admin.serves(scope["path"]):
            await self._admin(scope, receive, send)
        elif self._vertex.serves(scope["path"], headers):
            await self._vertex(scope, receive, send)
        else:
            await self._storage(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Run jobs while the server runs. Containers end while the loop runs, in whose thread their files become objects."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._service.start(self._open_launcher(asyncio.get_running_loop()))
            else:
                await asyncio.to_thread(self._service.close)
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
