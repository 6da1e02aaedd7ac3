"""The connections to Google Cloud Storage: one pool for each process and address, with a place for every thread.

They speak the JSON API themselves, with the credentials of Google's own libraries where they are. The functions of
google-cloud-storage join all bytes of an upload in memory, read a download in pieces of 8 KiB, and ask for its bucket by
themselves, in threads of their own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from .. import emulator
from .metadata import MachineToken

_POOL = 64
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


@dataclass(frozen=True, kw_only=True)
class GcsConnection:
    """A session with credentials, and the address that it is for, such as "https://storage.googleapis.com"."""

    session: requests.Session
    address: str


def connection() -> GcsConnection:
    """Return the process's connection to the storage that its environment names.

    Raises:
        InputError: the environment names an emulator that is not there.
        google.auth.exceptions.GoogleAuthError: there are no credentials.
    """
    return _connected(emulator.of_storage())


@lru_cache(maxsize=8)
def _connected(emulated: str) -> GcsConnection:
    if emulated:
        session, address = requests.Session(), emulated
        # Neither a proxy nor a .netrc of this machine has anything to do with it.
        session.trust_env = False
    else:
        session, address = _authorized()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=_POOL))
    return GcsConnection(session=session, address=address)


def _authorized() -> tuple[requests.Session, str]:
    try:
        from google.auth import default
        from google.auth.transport.requests import AuthorizedSession
    except ImportError:
        # A training image has a metadata server in its place.
        session = requests.Session()
        session.auth = MachineToken()
        return session, "https://storage.googleapis.com"
    credentials: Any = default(scopes=[_SCOPE])[0]
    authorized = AuthorizedSession(credentials)  # type: ignore[no-untyped-call,unused-ignore]
    return authorized, f"https://storage.{getattr(credentials, 'universe_domain', 'googleapis.com')}"


# Two processes that speak through one connection read each other's answers.
os.register_at_fork(after_in_child=_connected.cache_clear)
