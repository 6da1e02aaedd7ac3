"""Secret Manager, as far as a keeper asks it: the versions of secrets are files in the data folder."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .vertex.errors import VertexApiError

_ACCESS = re.compile(r"/v1/projects/(?P<project>[\w.:-]+)/secrets/(?P<secret>[\w-]+)/versions/(?P<version>\w+):access")


class SecretsApp:
    """Serves `secrets/PROJECT/SECRET`, a file with the value of every version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def serves(self, path: str) -> bool:
        return _ACCESS.fullmatch(path) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _ACCESS.fullmatch(scope["path"])
        name = scope["path"].removeprefix("/v1/").removesuffix(":access")
        try:
            data = (self._folder / match["project"] / match["secret"]).read_bytes() if match else b""
            answer: Response = JSONResponse({"name": name, "payload": {"data": base64.b64encode(data).decode()}})
        except OSError:
            message = f"Secret [{name.rpartition('/versions/')[0]}] not found or has no versions."
            answer = VertexApiError(404, message).response()
        await answer(scope, receive, send)
