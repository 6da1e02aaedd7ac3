"""The part of Secret Manager that a keeper uses: the versions of secrets are files in the data folder."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..storage.checksums import crc32c
from .vertex.errors import VertexApiError

_VERSION = re.compile(
    r"/v1/projects/(?P<project>[a-z0-9][a-z0-9.:-]*)/secrets/(?P<secret>[A-Za-z0-9_-]+)"
    r"/versions/(?P<version>latest|[0-9]{1,9})(?P<access>:access)?"
)


class SecretsApp:
    """Serves `secrets/PROJECT/SECRET`: a file with the value of every version, or a folder with a file for each version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def serves(self, path: str) -> bool:
        return _VERSION.fullmatch(path) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _VERSION.fullmatch(scope["path"])
        answer = self._answer(match) if match else VertexApiError(404, "Not found.").response()
        await answer(scope, receive, send)

    def _answer(self, match: re.Match[str]) -> Response:
        secret = f"projects/{match['project']}/secrets/{match['secret']}"
        path = self._folder / match["project"] / match["secret"]
        numbers = sorted(int(file.name) for file in path.iterdir() if file.name.isdecimal()) if path.is_dir() else [1]
        number = numbers[-1] if match["version"] == "latest" and numbers else match["version"]
        number = 1 if number == "latest" else int(number)
        try:
            data = (path / str(number) if path.is_dir() else path).read_bytes()
        except OSError:
            return VertexApiError(404, f"Secret Version [{secret}/versions/{match['version']}] not found.").response()
        name = f"{secret}/versions/{number}"
        if not match["access"]:
            return JSONResponse({"name": name, "state": "ENABLED"})
        payload = {"data": base64.b64encode(data).decode(), "dataCrc32c": str(crc32c([data]))}
        return JSONResponse({"name": name, "payload": payload})
