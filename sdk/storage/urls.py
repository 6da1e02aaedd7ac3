"""Checks whether the data at a URL exists: gs:// with Google's client, http(s) with the standard library, others with fsspec.

Each vendor's error becomes a message here. Every request has a time limit, and many run at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from glob import has_magic
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import quote

from ..clock import Clock, SystemClock
from ..errors import InputError, nearest
from ..text import and_more

# For one request, and for all of them together, in seconds.
_REQUEST_S, _LIMIT_S = 15.0, 30.0
_THREADS = 16
_LISTED = 1000
_MAX_NAMES, _MAX_TEXT = 8, 300
# urllib leaves quoting to its caller. "%" is safe, so that quoted characters are not quoted twice.
_URL_SAFE = "%/:=&?~#+!$,;'@()*[]"
_PROTOCOLS = ("gs", "https", "http", "s3", "abfs", "az", "adl", "hdfs", "webhdfs", "ftp", "sftp", "hf", "github", "zip")


@dataclass(frozen=True, kw_only=True)
class LookupResult:
    """What a probe of a URL found."""

    problem: str = ""  # why it cannot be read, with the next step
    note: str = ""
    cause: BaseException | None = None  # the vendor's error


def probe_urls(urls: Sequence[str], *, limit_s: float = _LIMIT_S, clock: Clock | None = None) -> list[LookupResult]:
    """Return a result for each URL, in order; all are probed at once, within `limit_s` seconds."""
    clock = clock or SystemClock()
    until = clock.monotonic() + limit_s
    waiting: SimpleQueue[str] = SimpleQueue()
    for url in dict.fromkeys(urls):
        waiting.put(url)
    answers: dict[str, LookupResult] = {}
    google = _Google()

    def work() -> None:
        while True:
            try:
                url = waiting.get_nowait()
            except Empty:
                return
            answers[url] = _probe(url, google)

    # Daemon threads: one that hangs in a vendor's library must not keep the interpreter from exiting.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_THREADS, waiting.qsize()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - clock.monotonic()))
    late = LookupResult(problem=f"No response within {limit_s:g} s. Next: check the network, or try again.")
    return [answers.get(url, late) for url in urls]


def suggest(word: str, known: Sequence[str]) -> str:
    """Return "Did you mean 'x'?", or the known names as far as they fit into a message."""
    if not known:
        return "The folder is empty."
    if len(known) <= _MAX_NAMES or get_close_matches(word, known, n=1):
        return nearest(word, known)
    return f"There are {and_more(sorted(known), _MAX_NAMES)}."


def chained(place: str) -> list[str]:
    """Return the parts of a chain such as zip://a.csv::https://host/b.zip; any other location is its only part."""
    # [::1] is a host.
    return re.split(r"::(?![^\[\]]*\])", place)


def _probe(url: str, google: _Google) -> LookupResult:
    scheme = url.partition("://")[0].lower()
    probe = _probe_fsspec
    if len(chained(url)) == 1:  # a chain is fsspec's own grammar
        if scheme == "gs":
            probe = google.probe
        elif scheme in ("http", "https"):
            probe = _probe_http
    try:
        return probe(url)
    except Exception as error:  # any error of a vendor's library concerns this input only
        return LookupResult(problem=f"It could not be checked: {_first_line(error)}.", cause=error)


def _first_line(error: BaseException, text: str = "") -> str:
    """Return the first line of an error's message, shortened."""
    lines = (text or f"{type(error).__name__}: {error}").strip().splitlines()
    return lines[0].rstrip(".: ")[:_MAX_TEXT]


class _Google:
    """Cloud Storage, connected at the first probe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Any = None
        self._no_credentials: Exception | None = None

    def probe(self, url: str) -> LookupResult:
        bucket, _, path = url.partition("://")[2].partition("/")
        if not bucket:
            return LookupResult(problem="It names no bucket: gs://BUCKET/PATH.")
        try:
            client = self._connected()
            if self._holds(client, bucket, path):
                public = "It was read without credentials: the bucket is public." if self._no_credentials else ""
                return LookupResult(note=public)
            return LookupResult(problem=_missing(client, bucket, path))
        except Exception as error:
            return LookupResult(problem=self._sentence(error, bucket), cause=error)

    def _connected(self) -> Any:
        from google.auth import default
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage  # type: ignore[import-untyped,unused-ignore]

        from . import emulator

        with self._lock:
            if self._client is None:
                credentials: Any = AnonymousCredentials()  # type: ignore[no-untyped-call,unused-ignore]
                address = emulator.storage_address()
                if not address:
                    try:
                        credentials = default()[0]
                    except DefaultCredentialsError as error:
                        # A public bucket needs none.
                        self._no_credentials = error
                # Reading needs no project, and detecting one would use the network.
                options = {"client_options": {"api_endpoint": address}} if address else {}
                self._client = storage.Client(project="podlift", credentials=credentials, **options)
            return self._client

    def _holds(self, client: Any, bucket: str, path: str) -> bool:
        once: dict[str, Any] = {"timeout": _REQUEST_S, "retry": None}
        if path and not path.endswith("/") and client.bucket(bucket).get_blob(path, **once) is not None:
            return True
        folder = f"{path.rstrip('/')}/" if path.strip("/") else None
        asked = {"match_glob": path} if has_magic(path) else {"prefix": folder}
        return any(True for _ in client.list_blobs(bucket, max_results=1, **asked, **once))

    def _sentence(self, error: Exception, bucket: str) -> str:
        from google.api_core.exceptions import Forbidden, GoogleAPICallError, NotFound, Unauthorized
        from google.auth.exceptions import InvalidOperation, RefreshError, TransportError
        from requests.exceptions import ConnectionError, Timeout

        if isinstance(error, InputError):
            return str(error)  # about the emulator's address
        login = "Next: gcloud auth application-default login."
        # Raised for anonymous credentials, which the client tries to refresh.
        if self._no_credentials is not None and isinstance(error, (Forbidden, Unauthorized, InvalidOperation)):
            return f"It needs credentials, and none were found ({_first_line(self._no_credentials)}). {login}"
        if isinstance(error, (Unauthorized, InvalidOperation, RefreshError)):
            return f"The credentials are not accepted: {_first_line(error, _message(error))}. {login}"
        if isinstance(error, Forbidden):
            return (
                f"Permission denied: {_first_line(error, _message(error))}. "
                f"Next: ask the owner of gs://{bucket} for the role roles/storage.objectViewer."
            )
        if isinstance(error, NotFound):
            return f"There is no bucket {bucket!r}. Next: gcloud storage ls."
        if isinstance(error, Timeout):
            return (
                f"Google Cloud Storage did not respond within {_REQUEST_S:g} s. Next: check the network, or try again."
            )
        if isinstance(error, (ConnectionError, TransportError)):
            # The reason is inside two errors that only count the tries.
            reason = getattr(error.args[0], "reason", error) if error.args else error
            return f"Google Cloud Storage cannot be reached: {_first_line(reason)}. Next: check the network."
        if isinstance(error, GoogleAPICallError):
            return f"Google Cloud Storage rejects the request: {error.code} {_first_line(error, _message(error))}."
        return f"It could not be checked: {_first_line(error)}."


def _message(error: Any) -> str:
    """Return the service's own message; the client prepends the request's method and URL."""
    details = [
        item["message"] for item in getattr(error, "errors", ()) if isinstance(item, dict) and item.get("message")
    ]
    return str(details[0]) if details else str(getattr(error, "message", error))


def _missing(client: Any, bucket: str, path: str) -> str:
    """Return the message for a missing object, with the existing names."""
    if not path.strip("/"):
        return f"The bucket {bucket!r} is empty."
    if has_magic(path):
        return f"No object of the bucket {bucket!r} matches {path!r}."
    parent, _, name = path.rstrip("/").rpartition("/")
    prefix = f"{parent}/" if parent else ""
    try:
        page = client.list_blobs(
            bucket, prefix=prefix, delimiter="/", max_results=_LISTED, timeout=_REQUEST_S, retry=None
        )
        names = [blob.name for blob in page] + [found.rstrip("/") for found in page.prefixes]
    except Exception:  # a hint is not worth a second error
        names = []
    others = [other for other in (found.removeprefix(prefix) for found in names) if other]
    where = f"gs://{bucket}/{prefix}"
    return f"There is no object of this name or below it. In {where}: {suggest(name, others)}"


def _probe_http(url: str) -> LookupResult:
    # Slow to import, and needed only for such inputs.
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    address = quote(url, safe=_URL_SAFE)
    # Some servers reject HEAD but allow GET; the body is not read.
    for method in ("HEAD", "GET"):
        request = Request(address, method=method, headers={"User-Agent": "podlift"})  # noqa: S310
        try:
            with urlopen(request, timeout=_REQUEST_S):  # noqa: S310  # called for http and https only
                return LookupResult()
        except HTTPError as error:
            error.close()
            result = LookupResult(problem=_http_sentence(error), cause=error)
        except (HTTPException, UnicodeError) as error:
            return LookupResult(problem=f"It is not a valid URL: {_first_line(error)}.", cause=error)
        except OSError as error:
            reason = error.reason if isinstance(error, URLError) else error
            message = _first_line(error, str(reason))
            return LookupResult(
                problem=f"The server cannot be reached: {message}. Next: check the network.", cause=error
            )
    return result


def _http_sentence(error: Any) -> str:
    message = f"the server returned {error.code} {error.reason}"
    if error.code in (404, 410):
        return f"It does not exist: {message}. Next: open the address in a browser."
    if error.code in (401, 403):
        return f"It needs credentials: {message}. Next: download it, or let the program open it with its own token."
    return f"It cannot be read: {message}."


def _probe_fsspec(url: str) -> LookupResult:
    from fsspec.core import url_to_fs  # type: ignore[import-untyped,unused-ignore]

    try:
        # A cached instance may remember an earlier result.
        files, path = url_to_fs(url, skip_instance_cache=True)
        if has_magic(path):
            return LookupResult() if files.glob(path) else LookupResult(problem="Nothing matches it.")
        files.info(path)
        return LookupResult()
    except ImportError as error:
        return LookupResult(problem=_needs(error), cause=error)
    except FileNotFoundError as error:
        return LookupResult(problem="It does not exist.", cause=error)
    except PermissionError as error:
        return LookupResult(problem=f"Permission denied: {_first_line(error)}.", cause=error)
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        scheme = str(error).rpartition(" ")[2]
        problem = f"Unknown protocol. Received: {scheme!r}. {nearest(scheme, _PROTOCOLS)}"
        return LookupResult(problem=problem, cause=error)


def _needs(error: ImportError) -> str:
    """Return the message for a protocol whose package is not installed, with the name of the package."""
    missing = error.__cause__.name if isinstance(error.__cause__, ImportError) else error.name
    package = (missing or "").partition(".")[0]
    return f"{_first_line(error, str(error))}. Next: " + (f"pip install {package}." if package else "install it.")
