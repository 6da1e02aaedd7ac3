"""Leads TensorFlow's own `gs://` file system, whose servers are fixed in its binary, to an emulator.

It heeds `https_proxy` and `CURL_CA_BUNDLE`: a proxy on loopback takes connections to Cloud Storage itself, under a certificate
of its own, and passes all others on. Who is started with `Redirect.environment` goes through it; nobody else does.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from ...errors import InputError
from . import certificates

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
_CONNECT = re.compile(rb"CONNECT ([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5}) HTTP/1\.[01]\r\n")
# TensorFlow says so with every empty body; the real servers take it, and the parser of the emulator does not.
_IDENTITY = re.compile(rb"\r\ntransfer-encoding:[ \t]*identity[ \t]*(?=\r\n)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)
_PIECE = 1 << 18
_HEAD_S = 60.0
_READY = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Redirect:
    """A proxy in a thread of this process, from `start` or `with` until `close`.

    Usage: `with Redirect(url, folder, os.environ) as redirect: subprocess.run(command, env=redirect.environment)`

    Args:
        emulator_url: such as "http://127.0.0.1:4443".
        folder: of this redirection alone; the trusted authorities are written into it.
        environ: the variables that the process would have had; a proxy in them goes on to be used for all other servers.

    Raises:
        InputError: the URL is none, or the proxy in the variables is not one that can be used.
    """

    def __init__(self, emulator_url: str, folder: Path, environ: Mapping[str, str]) -> None:
        parts = urlsplit(emulator_url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise InputError(f"The emulator's URL is http://HOST:PORT. Received: {emulator_url!r}.")
        self._emulator = (parts.hostname, parts.port)
        self._upstream = _upstream(environ)
        self._environ = dict(environ)
        self._url = emulator_url
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._tls_port = 0
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Redirect:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.close()

    def start(self) -> None:
        """Accept connections; `environment` is known from here on."""
        self._folder.mkdir(parents=True, exist_ok=True)
        context, authority = certificates.make(HOSTS, self._folder)
        bundle = self._folder / "authorities.pem"
        bundle.write_bytes(_trusted(self._environ) + authority)
        port = self._loop.run_until_complete(self._listen(context))
        self._thread = threading.Thread(target=self._loop.run_forever, name="podlift-redirect", daemon=True)
        self._thread.start()
        self.environment = {**self._environ, **_variables(self._url, port, bundle, self._environ)}

    def close(self) -> None:
        """Cut all connections and stop."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
            self._loop.run_until_complete(self._end())
        if not self._loop.is_closed():
            self._loop.close()

    async def _end(self) -> None:
        for server in (self._proxy, self._terminator):
            server.close()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _listen(self, context: ssl.SSLContext) -> int:
        # Two listeners: the proxy hands what is meant for Cloud Storage to the second one, which ends the encryption.
        self._terminator = await asyncio.start_server(self._terminate, "127.0.0.1", 0, ssl=context)
        self._tls_port = int(self._terminator.sockets[0].getsockname()[1])
        self._proxy = await asyncio.start_server(self._tunnel, "127.0.0.1", 0)
        return int(self._proxy.sockets[0].getsockname()[1])

    async def _terminate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.LimitOverrunError):
            there, other = await asyncio.open_connection(*self._emulator)
            await _both(_requests(reader, other), _pump(there, writer), other)
        writer.close()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
            match = _CONNECT.match(head)
            if match is None:
                writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            else:
                await self._pass_on(head, match[1].decode().strip("[]"), int(match[2]), reader, writer)
        writer.close()

    async def _pass_on(
        self, head: bytes, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        ours = host.lower() in HOSTS and port == 443
        place = ("127.0.0.1", self._tls_port) if ours else self._upstream or (host, port)
        try:
            there = await asyncio.open_connection(*place)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        if ours or self._upstream is None:
            writer.write(_READY)
        else:
            there[1].write(head)
        await _both(_pump(reader, there[1]), _pump(there[0], writer), there[1])


async def _both(to: Awaitable[None], back: Awaitable[None], writer: asyncio.StreamWriter) -> None:
    """Pass bytes in both directions until both are over, or one of them fails."""
    try:
        await asyncio.gather(to, back)
    finally:
        writer.close()


async def _requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on requests, without the header that the emulator's parser refuses."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            writer.write(error.partial)
            break
        head = _IDENTITY.sub(b"", head)
        writer.write(head)
        if _CHUNKED.search(head):
            break
        length = _LENGTH.search(head)
        left = int(length[1]) if length else 0
        while left and (piece := await reader.read(min(left, _PIECE))):
            left -= len(piece)
            writer.write(piece)
            await writer.drain()
    await _pump(reader, writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()


def _variables(url: str, port: int, bundle: Path, environ: Mapping[str, str]) -> dict[str, str]:
    own = ("127.0.0.1", "localhost")
    spared = [*own, *filter(None, (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(","))]
    proxy, direct = f"http://127.0.0.1:{port}", ",".join(dict.fromkeys(spared))
    return {
        "https_proxy": proxy,
        "HTTPS_PROXY": proxy,
        "no_proxy": direct,
        "NO_PROXY": direct,
        "CURL_CA_BUNDLE": str(bundle),
        "REQUESTS_CA_BUNDLE": str(bundle),
        # What TensorFlow says who it is; without, it looks for credentials and a metadata server, for seconds.
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "emulator",
        "NO_GCE_CHECK": "true",
        "STORAGE_EMULATOR_HOST": url,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


def _trusted(environ: Mapping[str, str]) -> bytes:
    """Return the authorities that the process would have trusted."""
    named = [environ.get(name) for name in ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")]
    usual = ssl.get_default_verify_paths()
    found = []
    for path in dict.fromkeys(filter(None, (*named, usual.cafile, usual.openssl_cafile))):
        with suppress(OSError):
            found.append(Path(path).read_bytes().rstrip(b"\n") + b"\n")
    return b"".join(found)


def _upstream(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the proxy that the process would have used.

    Raises:
        InputError: it is one with a password, or no HTTP proxy.
    """
    text = environ.get("https_proxy") or environ.get("HTTPS_PROXY")
    if not text:
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or parts.hostname is None or parts.username is not None:
        raise InputError(
            "The proxy in https_proxy cannot be combined with an emulator: it is no http://HOST:PORT. Next: unset https_proxy."
        )
    return parts.hostname, parts.port or 80
