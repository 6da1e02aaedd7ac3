"""Cloud Storage for tests: the fixture `podlift_gcs` is a running emulator, empty at the start of every test.

pytest imports it wherever podlift is installed, so it imports nothing slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from google.cloud.storage import Client  # type: ignore[import-untyped]
    from typing_extensions import Self

_ANSWER_S = 60.0
_POOL = 64


class Requests(NamedTuple):
    """The requests since the test began: the total, counts by operation and by status, and the last ones."""

    total: int
    operations: dict[str, int]
    statuses: dict[str, int]
    recent: list[dict[str, Any]]


class GcsServer:
    """An emulator in a child process that exits with this one.

    Usage: `with GcsServer(folder) as gcs: gcs.client().create_bucket("mine")`

    Args:
        folder: its data; a second server on the same folder continues with it.
    """

    # `sdk.emulator.server.Options`, as JSON.
    _options = "{}"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port, self._url = 0, ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Its address with the required token; unchanged by a restart."""
        return self._url

    @property
    def port(self) -> int:
        """Its port; unchanged by a restart."""
        return self._port

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until it accepts requests; RuntimeError if it fails, with its output on stderr."""
        home = str(Path(__file__).resolve().parents[2])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
        command = [sys.executable, "-m", "sdk.emulator", str(self.folder.absolute()), str(self._port), self._options]
        # The current folder, which comes first on the path, may belong to a project with another `sdk`.
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=self.folder
        )
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            self.kill()
            raise RuntimeError("The emulator did not start, see above. Next: pip install 'podlift[emulator]'.")
        self._url = line.decode().strip()
        self._port = urlsplit(self._url).port or 0

    def kill(self) -> None:
        """Kill the process with SIGKILL. Acknowledged data stays in the folder."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def client(self) -> Client:
        """Return a google-cloud-storage client of this emulator, without credentials."""
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession
        from google.cloud.storage import Client
        from requests.adapters import HTTPAdapter

        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        # Neither a proxy nor a .netrc of this machine has anything to do with it.
        session.trust_env = False
        session.mount("http://", HTTPAdapter(pool_connections=1, pool_maxsize=_POOL))
        options = {"api_endpoint": self.url}
        return Client(project="podlift", credentials=credentials, _http=session, client_options=options)

    def faults(self, *rules: Mapping[str, object]) -> None:
        """Inject these faults from now on, and no others: `gcs.faults({"kind": "drop_after", "nth": 1})`.

        Args:
            rules: the fields of a fault, see `sdk.emulator.faults`; none to remove all faults.

        Raises:
            InputError: a rule is invalid.
        """
        self.ask("POST", "/_faults", list(rules))

    def requests(self) -> Requests:
        answer = self.ask("GET", "/_requests")
        return Requests(**{name: answer[name] for name in Requests._fields})

    def forget_requests(self) -> None:
        """Reset the counts of `requests`."""
        self.ask("DELETE", "/_requests")

    def reset(self) -> None:
        """Remove all buckets, faults and counts; start the process if it was killed."""
        if not self.running:
            self.kill()
            self.start()
        self.ask("POST", "/_reset")

    def ask(self, method: str, path: str, value: Any = None, timeout_s: float = _ANSWER_S) -> Any:
        """Return the answer of the emulator's own endpoints; InputError if it rejects the request."""
        from ..errors import InputError

        body = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self.url + path, body, method=method)  # noqa: S310
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                answer = json.loads(error.read())
                raise InputError(answer["problems"] if "problems" in answer else answer["error"]["message"]) from None


@pytest.fixture(scope="session")
def podlift_gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """One emulator for all tests of this process; tests use `podlift_gcs`."""
    with GcsServer(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture
def podlift_gcs(podlift_gcs_server: GcsServer) -> GcsServer:
    """An empty Google Cloud Storage for this test.

    Usage: `podlift_gcs.client().create_bucket("mine")`

    It has `url`, `client()`, `faults(...)`, `requests()`, and `kill()` and `start()` to simulate an outage.
    """
    podlift_gcs_server.reset()
    return podlift_gcs_server
