"""The verb that emulates the cloud on this machine: emulator."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import sys
from pathlib import Path
from urllib.parse import urlsplit

from ..backends.vertex.options import Vertex
from ..errors import InputError, Problems
from ..hardware import regions
from ..planning.settings import file, table
from .output import answer, as_json, say
from .parameters import Buckets, Capacity, Data, Faults, Frozen, Json, Port

# The path of each service at the emulator.
_SERVICES = (
    "AIPLATFORM", "ARTIFACTREGISTRY", "CLOUDBUILD", "CLOUDRESOURCEMANAGER", "CLOUDSCHEDULER", "IAM", "LOGGING", "SERVICEUSAGE",
)  # fmt: skip
_GCLOUD = {**dict.fromkeys(_SERVICES, ""), "STORAGE": "storage/v1/"}


def emulator(
    data: Data,
    port: Port = 0,
    bucket: Buckets = None,
    faults: Faults = None,
    capacity: Capacity = 64,
    frozen: Frozen = False,
    json_output: Json = False,
) -> None:
    """Serve Cloud Storage, Vertex AI, Cloud Scheduler and Cloud Build on loopback until Ctrl-C.

    It prints the URL with its token.
    """
    try:
        from ..emulator.faults import parse_faults
        from ..emulator.server import serve
        from ..emulator.vertex.replicas import missing_isolation
    except ImportError as error:
        raise InputError(
            f"The emulator needs a package that is not installed: {error.name}. Next: pip install 'podlift[emulator]'."
        ) from None
    rules = [] if faults is None else parse_faults(_read(faults))
    # An unprivileged user may lack rights that replicas need: report it now, before a job fails.
    denied = missing_isolation()
    # Its token is removed then, as after Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        serve(
            data,
            port=port,
            announce=lambda url: _announce(url, data.resolve(), denied, json_output=json_output),
            faults=rules,
            buckets=_with_regions(bucket or []),
            capacity=capacity,
            frozen=frozen,
        )
    except KeyboardInterrupt:
        say(f"Stopped. The data remain in {data}.")
    finally:
        signal.signal(signal.SIGTERM, before)


def _announce(url: str, data: Path, denied: str | None, *, json_output: bool) -> None:
    if json_output:
        as_json({"url": url, "port": urlsplit(url).port, "data": str(data)})
    else:
        answer(f"export PODLIFT_EMULATOR={url}")
    for line in _hints(data):
        say(line)
    if denied is not None:
        say(denied)


def _with_regions(buckets: list[str]) -> list[str]:
    """Return the buckets with regions: the default is the region of jobs, which need a bucket there."""
    return [bucket if "@" in bucket else f"{bucket}@{_region()}" for bucket in buckets]


def _region() -> str:
    settings: dict[str, object] = {}
    try:
        problems = Problems()
        settings = {**file.find(Path.cwd(), problems).values, **table.from_environment(os.environ, problems)}
        names = Vertex(regions=settings["vertex_regions"]).region_names  # type: ignore[arg-type]
    except (KeyError, ValueError, InputError):
        # The commands that need these settings report mistakes in them.
        names = ()
    # By itself it stands for the region of the bucket, which may be any.
    return next((name for name in names if name != regions.CHEAPEST), regions.DEFAULT)


def _hints(data: Path) -> list[str]:
    """Return shell settings for other clients; the URL with its token is printed only once."""
    token = data / "token"
    return [
        "# This is all that podlift and its tasks need. Anyone with this URL can run commands as you. For other clients:",
        "export STORAGE_EMULATOR_HOST=$PODLIFT_EMULATOR   # google-cloud-storage, gcsfs",
        "export GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false   # else gcsfs asks Google first, for a minute each time",
        "# gcloud storage, gcloud ai custom-jobs, gcloud scheduler, and the commands that podlift doctor prints:",
        f"export CLOUDSDK_AUTH_ACCESS_TOKEN_FILE={shlex.quote(str(token))}",
        *(f"export CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}=$PODLIFT_EMULATOR/{path}" for name, path in _GCLOUD.items()),
        "# google-cloud-aiplatform, with AnonymousCredentials of google.auth.credentials:",
        "# aiplatform.init(project=..., location=..., staging_bucket='gs://...', credentials=AnonymousCredentials(),",
        "#                 api_endpoint=os.environ['PODLIFT_EMULATOR'], api_transport='rest')",
        *_warnings(),
    ]


def _warnings() -> list[str]:
    """Return a warning if stdout, and so the URL, goes to a file that other users can read."""
    try:
        about = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return []
    if not stat.S_ISREG(about.st_mode) or not about.st_mode & 0o044:
        return []
    return ["# The URL is now in a file that other users of this machine can read. Next: chmod 600 that file."]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"The file of --faults cannot be read: {error}.") from None
