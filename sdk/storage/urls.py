"""Checks whether the data at a URL exists: gs:// with podlift's client, http(s) with the standard library, others with fsspec.

Every request has a time limit, and many run at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from glob import has_magic
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..clock import Clock, SystemClock
from ..errors import AccessError, InputError, StoreError, nearest
from ..text import and_more
from .retry import RetryPolicy

if TYPE_CHECKING:
    from .gcs.files import BucketFiles
    from .gcs.store import Access

# For one request, and for all of them together, in seconds.
_REQUEST_S, _LIMIT_S = 15.0, 30.0
_RETRY = RetryPolicy(connect_s=5.0, read_s=10.0, total_s=15.0, first_s=15.0)
_THREADS = 16
_LISTED = 1000
_MAX_NAMES, _MAX_TEXT = 8, 300
# urllib leaves quoting to its caller. "%" is safe, so that quoted characters are not quoted twice.
_URL_SAFE = "%/:=&?~#+!$,;'@()*[]"
_PROTOCOLS = ("gs", "https", "http", "s3", "abfs", "az", "adl", "hdfs", "webhdfs", "ftp", "sftp", "hf", "github", "zip")


@dataclass(frozen=True, kw_only=True)
class LookupResult:
    """The result of a probe of a URL."""

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

    def work() -> None:
        while True:
            try:
                url = waiting.get_nowait()
            except Empty:
                return
            answers[url] = _probe(url)

    # Daemon threads: one that hangs in a vendor's library must not keep the interpreter from exiting.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_THREADS, waiting.qsize()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - clock.monotonic()))
    late = LookupResult(problem=f"No response within {limit_s:g} s. Next: check the network, or try again.")
    return [answers.get(url, late) for url in urls]


def suggest(word: str, names: Sequence[str]) -> str:
    """Return "Did you mean 'x'?", or as many known names as fit into a message."""
    if not names:
        return "The folder is empty."
    if len(names) <= _MAX_NAMES or get_close_matches(word, names, n=1):
        return nearest(word, names)
    return f"There are {and_more(sorted(names), _MAX_NAMES)}."


def chained(location: str) -> list[str]:
    """Return the parts of a chain such as zip://a.csv::https://host/b.zip; any other location is its only part."""
    # [::1] is a host.
    return re.split(r"::(?![^\[\]]*\])", location)


def _probe(url: str) -> LookupResult:
    scheme = url.partition("://")[0].lower()
    probe = _probe_fsspec
    if len(chained(url)) == 1:  # a chain is fsspec's own grammar
        if scheme == "gs":
            probe = _probe_bucket
        elif scheme in ("http", "https"):
            probe = _probe_http
    try:
        return probe(url)
    except (StoreError, InputError) as error:
        return LookupResult(problem=str(error), cause=error)
    except Exception as error:  # any error of a vendor's library concerns this input only
        return LookupResult(problem=f"It could not be checked: {_first_line(error)}.", cause=error)


def _first_line(error: BaseException, text: str = "") -> str:
    lines = (text or f"{type(error).__name__}: {error}").strip().splitlines()
    return lines[0].rstrip(".: ")[:_MAX_TEXT]


def _probe_bucket(url: str) -> LookupResult:
    """Probe with the credentials of this machine, or without any: a public bucket needs none."""
    from .gcs.errors import NoCredentialsError

    bucket, _, path = url.partition("://")[2].partition("/")
    if not bucket:
        return LookupResult(problem="It names no bucket: gs://BUCKET/PATH.")
    try:
        return _look_up(bucket, path, "read")
    except NoCredentialsError as error:
        with suppress(AccessError):
            result = _look_up(bucket, path, "anonymous")
            return (
                result
                if result.problem
                else replace(result, note="It was read without credentials: the bucket is public.")
            )
        raise error


def _look_up(bucket: str, path: str, access: Access) -> LookupResult:
    from .gcs.files import BucketFiles

    files = BucketFiles(f"gs://{bucket}", retry=_RETRY, access=access)
    if path and not path.endswith("/") and files.exists(path):
        return LookupResult()
    if has_magic(path):
        exists = files.any_object(pattern=path)
    else:
        exists = files.any_object(prefix=f"{path.rstrip('/')}/" if path.strip("/") else "")
    return LookupResult() if exists else LookupResult(problem=_missing(files, bucket, path))


def _missing(files: BucketFiles, bucket: str, path: str) -> str:
    """Return the message for a missing object, with the existing names."""
    if not path.strip("/"):
        return f"The bucket {bucket!r} is empty."
    if has_magic(path):
        return f"No object of the bucket {bucket!r} matches {path!r}."
    parent, _, name = path.rstrip("/").rpartition("/")
    names: list[str] = []
    with suppress(StoreError):  # a hint is not worth a second error
        folders, others = files.folder(parent, at_most=_LISTED)
        names = [*folders, *others]
    where = f"gs://{bucket}/{parent}/" if parent else f"gs://{bucket}/"
    return f"There is no object of this name or below it. In {where}: {suggest(name, names)}"


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
    """Return the message for a protocol without its package, with the name of the package."""
    missing = error.__cause__.name if isinstance(error.__cause__, ImportError) else error.name
    package = (missing or "").partition(".")[0]
    return f"{_first_line(error, str(error))}. Next: " + (f"pip install {package}." if package else "install it.")
