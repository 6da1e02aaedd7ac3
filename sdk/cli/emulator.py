"""The verb that serves the cloud on this machine: emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from .output import answer, as_json, say
from .start import Json

Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 for any free one")]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="where everything is kept", show_default=False)]
Buckets = Annotated[
    list[str] | None,
    typer.Option("--bucket", metavar="NAME", help="made unless it is there; repeatable", show_default=False),
]
Script = Annotated[
    Path | None,
    typer.Option("--faults", metavar="FILE", help="what goes wrong from the beginning, as JSON", show_default=False),
]


def emulator(
    data: Data, port: Port = 0, bucket: Buckets = None, faults: Script = None, json_output: Json = False
) -> None:
    """Serve a Google Cloud Storage on this machine, on loopback only, until Ctrl-C; prints its URL."""
    try:
        from ..emulator.gcs import faults as scripts
        from ..emulator.gcs.server import serve
    except ImportError as error:
        raise InputError(
            f"The emulator needs a package that is not installed: {error.name}. Next: pip install 'podlift[emulator]'."
        ) from None
    rules = [] if faults is None else scripts.parse(_read(faults))

    def announce(bound: int) -> None:
        url = f"http://127.0.0.1:{bound}"
        if json_output:
            as_json({"url": url, "port": bound, "data": str(data.resolve())})
        else:
            answer(url)
        for line in _hints(url):
            say(line)

    try:
        serve(data, port=port, announce=announce, faults=rules, buckets=bucket or ())
    except KeyboardInterrupt:
        say(f"Stopped. The data stay in {data}.")


def _hints(url: str) -> list[str]:
    """Return what a shell has to say to the clients."""
    return [
        f"export PODLIFT_EMULATOR={url}   # podlift, and all that its tasks do with gs://",
        f"export STORAGE_EMULATOR_HOST={url}",
        "export GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false   # else gcsfs asks Google first, for a minute each time",
        f"export CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE={url}/storage/v1/ CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true",
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"The file of --faults cannot be read: {error}.") from None
