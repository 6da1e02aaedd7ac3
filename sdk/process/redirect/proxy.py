"""Redirects TensorFlow's own `gs://` file system, with servers that are fixed in its binary, to an emulator.

It heeds `https_proxy` and `CURL_CA_BUNDLE`: a proxy on loopback takes connections to Cloud Storage itself, under its own
certificate, and passes all others on. Processes that are started with `Redirect.environment` go through it: their credentials
for the proxy are the emulator's token, which it writes into their requests to Cloud Storage. Without them it does nothing.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import secrets
import socket
import ssl
import threading
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...errors import InputError
from ...storage import emulator_proof
from . import tokens

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
_CONNECT = re.compile(rb"CONNECT ([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5}) HTTP/1\.[01]\r\n")
# TensorFlow sends it with every empty body; the real servers accept it, and the parser of the emulator does not.
_IDENTITY = re.compile(rb"\r\ntransfer-encoding:[ \t]*identity[ \t]*(?=\r\n)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)
_CREDENTIALS = re.compile(rb"\r\nproxy-authorization:[ \t]*basic[ \t]+([A-Za-z0-9+/=]+)[ \t]*\r\n", re.IGNORECASE)
_TARGET = re.compile(rb"\A([A-Z]+ )(/)")
_PIECE = 1 << 18
_HEAD_S, _END_S = 10.0, 5.0
# How many clients may have sent an incomplete head at a time; beyond that the oldest is disconnected.
_MAX_WAITING = 128
_VALID = timedelta(days=400)
_SKEW = timedelta(days=1)
_READY = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Redirect:
    """A proxy in a thread of this process, from `start` or `with` until `close`.

    Usage: `with Redirect(url, folder, os.environ) as redirect: subprocess.run(command, env=redirect.environment)`

    Args:
        emulator_url: such as "http://127.0.0.1:4443/TOKEN".
        folder: of this redirection alone; the trusted authorities are written into it.
        environ: the variables that the process would have had; a proxy in them is still used for all other servers.

    Raises:
        InputError: the URL is malformed, or the proxy in the variables cannot be used.
    """

    def __init__(self, emulator_url: str, folder: Path, environ: Mapping[str, str]) -> None:
        parts = urlsplit(emulator_url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise InputError("The emulator's URL is http://HOST:PORT/TOKEN, as podlift emulator has printed it.")
        self._emulator = (parts.hostname, parts.port)
        self._token = parts.path.strip("/")
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        self._tunnels: set[asyncio.Task[None] | None] = set()
        self._upstream = _upstream(environ)
        self._environ, self._url, self._folder = dict(environ), emulator_url, folder
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Redirect:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Accept connections; `environment` is known from here on."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._context, authority = _make_certificate(self._folder)
        bundle = self._folder / "authorities.pem"
        bundle.write_bytes(_trusted(self._environ) + authority)
        self._proxy = self._loop.run_until_complete(asyncio.start_server(self._tunnel, "127.0.0.1", 0))
        port = self._proxy.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="podlift-redirect", daemon=True)
        self._thread.start()
        self.environment = {**self._environ, **self._variables(port, str(bundle))}

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
        self._proxy.close()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_END_S)

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._waiting[writer] = None
        if len(self._waiting) > _MAX_WAITING:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
        # The event loop, and after `start_tls` the connection, refer to this task only weakly.
        task = asyncio.current_task()
        self._tunnels.add(task)
        broken = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError)
        try:
            # `close` cancels this task, which asyncio would report as a failure.
            with suppress(*broken, asyncio.CancelledError):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
                self._waiting.pop(writer, None)
                await self._answer(head, reader, writer)
        finally:
            self._tunnels.discard(task)
            self._waiting.pop(writer, None)
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match = _CONNECT.match(head)
        if not self._is_known(head):
            challenge = b'Proxy-Authenticate: Basic realm="podlift"\r\n'
            await _refuse(writer, b"407 Proxy Authentication Required", challenge)
        elif match is None:
            await _refuse(writer, b"405 Method Not Allowed")
        elif match[1].decode().lower() in HOSTS and int(match[2]) == 443:
            await self._end_encryption(reader, writer)
        else:
            await self._pass_on(head, match[1].decode().strip("[]"), int(match[2]), reader, writer)

    def _variables(self, port: int, bundle: str) -> dict[str, str]:
        spared = (self._environ.get("no_proxy") or self._environ.get("NO_PROXY") or "").split(",")
        direct = ",".join(dict.fromkeys(filter(None, ("127.0.0.1", "localhost", *spared))))
        proxy = f"http://podlift:{self._token}@127.0.0.1:{port}"
        return {
            "https_proxy": proxy,
            "HTTPS_PROXY": proxy,
            "no_proxy": direct,
            "NO_PROXY": direct,
            "CURL_CA_BUNDLE": bundle,
            "REQUESTS_CA_BUNDLE": bundle,
            # The identity of TensorFlow; without it, it searches for credentials and a metadata server, for seconds.
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "emulator",
            "NO_GCE_CHECK": "true",
            "STORAGE_EMULATOR_HOST": self._url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def _is_known(self, head: bytes) -> bool:
        """Return whether a client has shown the token: as the password, or alone."""
        match = _CREDENTIALS.search(head)
        try:
            credentials = base64.b64decode(match[1], validate=True).decode() if match else ""
        except ValueError:
            return False
        user, _, password = credentials.partition(":")
        return bool(self._token) and tokens.equal(password or user, self._token)

    async def _end_encryption(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection to Cloud Storage on to the emulator, through TLS that ends in this process.

        A separate listener would be open to clients without the token.
        """
        # Bytes that the client sent without waiting for the answer: `start_tls` would never see them.
        reader.feed_eof()
        if await reader.read():
            await _refuse(writer, b"400 Bad Request")
            return
        loop = asyncio.get_running_loop()
        plain = asyncio.StreamReader(limit=_PIECE, loop=loop)
        protocol = asyncio.StreamReaderProtocol(plain, loop=loop)
        writer.write(_READY)
        transport = await loop.start_tls(
            writer.transport, protocol, self._context, server_side=True, ssl_handshake_timeout=_HEAD_S
        )
        if transport is None:
            return
        protocol.connection_made(transport)
        back = asyncio.StreamWriter(transport, protocol, plain, loop)
        try:
            emulator = await self._proven()
            await _both(_requests(plain, emulator[1], self._token.encode()), _pump(emulator[0], back), emulator[1])
        finally:
            back.close()

    async def _proven(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to the emulator, after its proof that it knows the token; OSError for another server."""
        reader, writer = await asyncio.open_connection(*self._emulator)
        try:
            challenge = emulator_proof.Challenge(self._token, writer.get_extra_info("peername")[0])
            writer.write(challenge.request)
            challenge.check(await asyncio.wait_for(_answer_to(challenge, reader), _HEAD_S))
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _pass_on(
        self, head: bytes, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            address = await _outside(host, port) if self._upstream is None else self._upstream
            if address is None or _is_here(host):
                await _refuse(writer, b"403 Forbidden")
                return
            there = await asyncio.open_connection(*address)
        except (OSError, OverflowError, UnicodeError):
            await _refuse(writer, b"502 Bad Gateway")
            return
        if self._upstream is None:
            writer.write(_READY)
        else:
            there[1].write(_CREDENTIALS.sub(b"\r\n", head))
        await _both(_pump(reader, there[1]), _pump(there[0], writer), there[1])


async def _answer_to(challenge: emulator_proof.Challenge, reader: asyncio.StreamReader) -> bytes:
    answer = b""
    while not challenge.is_complete(answer) and (piece := await reader.read(_PIECE)):
        answer += piece
    return answer


async def _refuse(writer: asyncio.StreamWriter, status: bytes, more: bytes = b"") -> None:
    writer.write(b"HTTP/1.1 " + status + b"\r\n" + more + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def _outside(host: str, port: int) -> tuple[str, int] | None:
    """Return the address of a server that is not on this machine's loopback interface; None for one that is.

    The address that was looked at is the one that is connected to: a name may lead somewhere else the next time.
    """
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in infos]
    return None if any(map(_is_here, addresses)) else (addresses[0], port)


def _is_here(host: str) -> bool:
    """Return whether an address, or a name that needs no server to be resolved, is one of the loopback interface."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return address.is_loopback or address.is_unspecified
    # An old form of an address such as 127.1 or 0x7f000001 counts too: nothing honest writes them.
    with suppress(OSError):
        return bool(socket.inet_aton(host))
    return host.lower().rstrip(".").rpartition(".")[2] in ("localhost", "localdomain")


async def _both(to: Awaitable[None], back: Awaitable[None], writer: asyncio.StreamWriter) -> None:
    """Pass bytes in both directions until both are over, or one of them fails."""
    try:
        await asyncio.gather(to, back)
    finally:
        writer.close()


async def _requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> None:
    """Pass on requests with the token in their path, without the header that the emulator's parser refuses."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            writer.write(error.partial)
            break
        head = _TARGET.sub(lambda match: match[1] + b"/" + token + match[2], _IDENTITY.sub(b"", head), count=1)
        writer.write(head)
        length = _LENGTH.search(head)
        if _CHUNKED.search(head):
            await _pass_chunks(reader, writer)
        else:
            await _pass_bytes(reader, writer, int(length[1]) if length else 0)
    await _pump(reader, writer)


async def _pass_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int) -> None:
    while left and (piece := await reader.read(min(left, _PIECE))):
        left -= len(piece)
        writer.write(piece)
        await writer.drain()


async def _pass_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    size = 1
    while size:
        line = await reader.readuntil(b"\r\n")
        writer.write(line)
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            return  # The emulator sees the same line, and refuses it.
        # After the last one there may be further headers, and an empty line ends them all.
        await _pass_bytes(reader, writer, size + 2 if size else 0)
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        writer.write(line)
    writer.write(line)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()


def _trusted(environ: Mapping[str, str]) -> bytes:
    """Return the authorities that the process would have trusted."""
    named = [environ.get(name) for name in ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")]
    usual = ssl.get_default_verify_paths()
    authorities = []
    for path in dict.fromkeys(filter(None, (*named, usual.cafile, usual.openssl_cafile))):
        with suppress(OSError):
            authorities.append(Path(path).read_bytes().rstrip(b"\n") + b"\n")
    return b"".join(authorities)


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
            "The proxy in https_proxy cannot be used with an emulator: it must be http://HOST:PORT. Next: unset https_proxy."
        )
    return parts.hostname, parts.port or 80


def _make_certificate(folder: Path) -> tuple[ssl.SSLContext, bytes]:
    """Return the TLS context of a server of `HOSTS`, and the authority that its clients have to trust, in PEM.

    The authority may sign nothing but these names, and its key is gone when this returns. The key of the server is in the
    folder for a moment.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    names = [x509.DNSName(host) for host in HOSTS]
    # A client finds the issuer by name: of two with the same name, it takes the first.
    issuer = _name(f"podlift emulator authority {secrets.token_hex(8)}")
    signs = ("key_cert_sign", "crl_sign")
    others = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        **dict.fromkeys(signs, True), **dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    )
    authority = (
        _builder(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.NameConstraints(permitted_subtrees=names, excluded_subtrees=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name("podlift emulator"), issuer, key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = folder / "server.pem"
    # The ssl module reads keys from files only.
    path.touch(mode=0o600)
    try:
        path.write_bytes(certificate.public_bytes(pem) + secret)
        context.load_cert_chain(path)
    finally:
        path.unlink()
    return context, authority.public_bytes(pem)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(now + _VALID)
