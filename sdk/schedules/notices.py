"""Notifications of a schedule: a webhook or a command. They never delay or fail a run.

`webhook:NAME` posts JSON to the URL in the environment variable NAME of the server, or, for a keeper, in a version of a secret
in Secret Manager: the URL is a secret and stored nowhere.
`command:WORDS` starts a command with the same JSON as its input.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ..clock import Clock
from ..errors import InputError, PodliftError
from ..logs import logger
from ..storage.retry import Retries, retry_after_s

_log = logger("schedules")
_SECRET = re.compile(r"projects/[A-Za-z0-9:._-]+/secrets/[A-Za-z0-9_-]+/versions/(latest|[0-9]+)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A webhook is retried for this long, after waits that grow from the second value to the third.
_REPEAT_S, _FIRST_S, _LONGEST_S = 45.0, 1.0, 15.0
_LIMIT_S, _SETTLE_S = 10.0, 60.0
Post = Callable[[str, bytes], None]


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One event of a schedule; the names of the fields are the keys of the JSON."""

    schedule: str
    event: str  # failed, skipped, paused, promoted or asks
    slot: str
    state: str
    reason: str
    run: str
    text: str  # one sentence, which Slack shows
    model: str = ""  # the name of the model of its run, if that was registered
    version: int = 0


def check(text: str) -> str:
    """Return a notification that is valid, else raise InputError; never shows a URL, which is a secret."""
    kind, colon, rest = text.partition(":")
    if kind == "webhook" and colon and (_VARIABLE.fullmatch(rest) or _SECRET.fullmatch(rest)):
        return text
    if kind == "command" and rest.strip():
        try:
            shlex.split(rest)
            return text
        except ValueError as error:
            raise InputError(f"notify: the command is not valid: {error}. Received: {text!r}.") from None
    if "://" in text:
        raise InputError(
            "notify: a webhook's URL is a secret and is not stored. Next: put it into an environment variable of the server, "
            "and write webhook:NAME with the name of that variable."
        )
    raise InputError(
        f"notify: unknown. Received: {text!r}. Known: webhook:VARIABLE, command:WORDS, and on a cloud "
        "webhook:projects/PROJECT/secrets/SECRET/versions/VERSION."
    )


def secrets(notify: Sequence[str]) -> list[str]:
    """Return the secrets that notifications name."""
    return [text.partition(":")[2] for text in notify if _SECRET.fullmatch(text.removeprefix("webhook:"))]


def _no_secrets(name: str) -> str:
    raise InputError(f"Only the keeper of a schedule can read {name}.")


def _post(url: str, data: bytes) -> None:
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=_LIMIT_S):  # noqa: S310
        pass


class Notifier:
    """Sends notices from separate threads."""

    def __init__(
        self,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
        post: Post = _post,
        secret: Callable[[str], str] = _no_secrets,
    ) -> None:
        self._clock, self._environ, self._post, self._secret = clock, environ, post, secret
        self._threads: list[threading.Thread] = []

    def send(self, targets: Sequence[str], notice: Notice) -> None:
        """Start to send a notice, and return at once."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for target in targets:
            thread = threading.Thread(target=self.deliver, args=(target, notice), daemon=True)
            thread.start()
            self._threads.append(thread)

    def settle(self) -> None:
        """Wait until the notices have arrived or timed out: for a process that is about to end."""
        for thread in self._threads:
            thread.join(_SETTLE_S)

    def deliver(self, target: str, notice: Notice) -> None:
        """Send a notice to one target; log a failure."""
        kind, _, rest = target.partition(":")
        data = json.dumps(asdict(notice)).encode()
        try:
            if kind == "command":
                subprocess.run(shlex.split(rest), input=data, timeout=60, check=True, stdout=subprocess.DEVNULL)
            else:
                self._webhook(rest, data)
        except Exception as error:  # a notification must not end the server
            # The message of an error may hold the URL; podlift's own errors do not.
            error_text = str(error) if kind == "command" or isinstance(error, PodliftError) else type(error).__name__
            _log.warning("The notification %s of the schedule %s failed: %s", target, notice.schedule, error_text)

    def _webhook(self, name: str, data: bytes) -> None:
        url = self._secret(name).strip() if _SECRET.fullmatch(name) else self._environ.get(name)
        if not url or not url.startswith(("http://", "https://")):
            raise LookupError(name)
        tries = Retries.within(_REPEAT_S, self._clock, _FIRST_S, longest_s=_LONGEST_S)
        while True:
            try:
                self._post(url, data)
                return
            except urllib.error.HTTPError as error:
                asked_s = retry_after_s(dict(error.headers.items()))
                if (error.code < 500 and error.code != 429) or not tries.again(asked_s):
                    raise
            except OSError:
                if not tries.again():
                    raise
