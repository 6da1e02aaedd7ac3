"""The secret of an emulator, which its clients have in their URL, and the secrets of replicas, which are derived from it."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError

FILE = "token"
_FORM = re.compile(r"[0-9a-f]{32}")


class ReplicaIdentity(NamedTuple):
    """The replica of a job that sends a request to the metadata server; both are "" for another client."""

    job: str = ""
    name: str = ""


def create(folder: Path, *, keep: bool = False) -> str:
    """Return a new token of a data folder, in a file of mode 0600, or with `keep` the one of the server before.

    A token that another user can have read or written is not kept.

    Raises:
        InputError: the folder is another user's, or nothing can be written into it.
    """
    path = folder / FILE
    owner = folder.stat().st_uid
    if owner not in (os.geteuid(), 0):
        raise InputError(
            f"The data folder belongs to another user, who could put jobs into it. Received: {str(folder)!r}, of user "
            f"{owner}. Next: name another folder by --data."
        )
    if keep and (earlier_token := _read(path)):
        return earlier_token
    token, new = secrets.token_hex(16), folder / f"{FILE}.{secrets.token_hex(4)}"
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w") as file:
            file.write(f"{token}\n")
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        step = "remove it" if path.is_dir() else "name another folder by --data"
        raise InputError(
            f"The token cannot be written: {error.strerror}. Received: {str(path)!r}. Next: {step}."
        ) from None
    return token


def _read(path: Path) -> str:
    """Return the token in a file that only this user can have read or written; "" for anything else."""
    with (
        suppress(OSError, UnicodeDecodeError),
        open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file,
    ):
        about = os.fstat(file.fileno())
        own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
        text = file.read(100).strip() if own else ""
        return text if _FORM.fullmatch(text) else ""
    return ""


def remove(folder: Path, token: str) -> None:
    """Remove the token of a server that has ended, unless another one has replaced it."""
    with suppress(OSError):
        if _read(folder / FILE) == token:
            (folder / FILE).unlink()


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token."""
    return _FORM.fullmatch(text) is not None


def equal(one: str, other: str) -> bool:
    """Return whether two secrets are the same, in a time that does not reveal how much of them is."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def replica_token(token: str, replica: ReplicaIdentity) -> str:
    """Return the secret of a replica: it opens the metadata server, identifies the client, and opens nothing else."""
    about = f"{replica.job}.{replica.name}"
    return f"{about}.{hmac.digest(token.encode(), about.encode(), hashlib.sha256).hex()[:32]}"


def find_replica(token: str, secret: str) -> ReplicaIdentity | None:
    """Return the replica with this secret."""
    job, _, rest = secret.partition(".")
    replica = ReplicaIdentity(job=job, name=rest.partition(".")[0])
    return replica if equal(replica_token(token, replica), secret) else None
