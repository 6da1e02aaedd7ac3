"""Requests for prices and machine types: reads with retries, whose errors say what to do. A key is sent in a header only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

import requests

from ...clock import Clock
from ...errors import PodliftError, UnavailableError
from ...storage import emulator
from ...storage.retry import Retries, retry_after_s
from . import client

# Holds a key for the catalog, instead of these credentials.
KEY = "PODLIFT_BILLING_API_KEY"
BILLING = "https://cloudbilling.googleapis.com"
_COMPUTE = "https://compute.googleapis.com"
_TPU = "https://tpu.googleapis.com"
_NAMES = {BILLING: "The Cloud Billing catalog", _COMPUTE: "Compute Engine", _TPU: "Cloud TPU"}
_ROLES = {_COMPUTE: "roles/compute.viewer", _TPU: "roles/tpu.viewer"}
# Only these families are available for training.
_FAMILIES = 'name eq "(a2|a3|c2|e2|g2|g4|m1|n1|n2|n4)-.*"'
# A page of the catalog has some MB.
_TIMEOUT_S = (5.0, 60.0)
_RETRY_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 60.0, 0.5, 8.0
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_MAX_PAGES = 1000
_SHOWN = 300
_OFF = re.compile(r"SERVICE_DISABLED|has not been used in project|is disabled")

_LOGIN = "Next: gcloud auth application-default login."

Page = Mapping[str, object]


class RefusedError(PodliftError):
    """Services refused to answer; one message for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        many = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(problems[0] if len(problems) == 1 else f"{len(problems)} problems:{many}")


class PriceCalls:
    def __init__(self, project: str, key: str, clock: Clock) -> None:
        self._project, self._key, self._clock = project, key, clock
        self._emulator = emulator.checked_address()

    def compute(self, collection: str, query: Mapping[str, str]) -> Iterator[Page]:
        """Yield the pages of a list over all zones."""
        more = {"filter": _FAMILIES} if collection == "machineTypes" else {}
        path = f"/compute/v1/projects/{quote(self._project)}/aggregated/{collection}"
        yield from self.pages(_COMPUTE, path, {**query, **more})

    def tpu(self, path: str, collection: str) -> list[Page]:
        """Return a whole list of Cloud TPU."""
        found = list[Page]()
        for page in self.pages(_TPU, f"/v2/projects/{quote(self._project)}/locations{path}", {}):
            listed = page.get(collection)
            found += [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
        return found

    def pages(self, host: str, path: str, query: Mapping[str, str]) -> Iterator[Page]:
        token, seen = "", set[str]()
        while True:
            page = self._get(host, path, {**query, **({"pageToken": token} if token else {})})
            yield page
            following = page.get("nextPageToken")
            token = following if isinstance(following, str) else ""
            if not token:
                return
            if token in seen or len(seen) >= _MAX_PAGES:
                raise PodliftError(f"{_NAMES[host]} never ends its list: it gave the same page twice. Next: try again.")
            seen.add(token)

    def _get(self, host: str, path: str, query: Mapping[str, str]) -> Page:
        tries = Retries.within(_RETRY_S, self._clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        while True:
            try:
                response = self._send(host, path, query)
            except (requests.RequestException, OSError) as error:
                if tries.again():
                    continue
                text = (
                    f"{_NAMES[host]} cannot be reached: {self._clean(type(error).__name__)}. Next: check the network."
                )
                raise UnavailableError(text) from None
            if response.status_code in _AGAIN and tries.again(retry_after_s(response.headers)):
                continue
            if response.status_code != requests.codes.ok:
                raise RefusedError([self._refusal(host, response)])
            return self._read(host, response)

    def _send(self, host: str, path: str, query: Mapping[str, str]) -> Any:
        url = (self._emulator or host) + path
        keyed = bool(self._key) and host == BILLING
        session = self._keyed if keyed else self._authorized
        headers = {"X-Goog-Api-Key": self._key} if keyed else {}
        try:
            return session.get(url, params=query, headers=headers, timeout=_TIMEOUT_S, allow_redirects=False)
        except (requests.RequestException, OSError):
            raise
        except Exception as error:
            # google-auth raises its own.
            if not type(error).__module__.startswith("google."):
                raise
            raise RefusedError([f"The credentials are not accepted: {self._clean(_line(error))}. {_LOGIN}"]) from None

    @cached_property
    def _keyed(self) -> Any:
        # Credentials of this machine must not be sent beside the key.
        return client.session(self._emulator) if self._emulator else requests.Session()

    @cached_property
    def _authorized(self) -> Any:
        return client.session(self._emulator or BILLING, self._project)

    def _read(self, host: str, response: Any) -> Page:
        try:
            page = json.loads(response.content)
        except (ValueError, RecursionError):
            page = None
        if not isinstance(page, dict):
            raise PodliftError(
                f"{_NAMES[host]} answered with something else than a page of a list. A proxy or login page may have "
                "intercepted the request. Next: check the network and its proxies."
            )
        return page

    def _refusal(self, host: str, response: Any) -> str:
        text = self._clean(_message(response)) or str(response.reason or "no reason given")
        status, service = response.status_code, host.removeprefix("https://")
        keyed = bool(self._key) and host == BILLING
        if _OFF.search(text):
            step = f"gcloud services enable {service} --project {self._project}"
        elif keyed and status in (400, 401, 403):
            step = f"check the key in {KEY}, and that it may call {service}; or unset it, and use your own credentials"
        elif status == 401:
            step = "gcloud auth application-default login"
        elif status == 403 and host in _ROLES:
            step = f"ask for {_ROLES[host]} in {self._project}"
        elif status in (403, 404):
            step = f"check the project: {self._project}"
        else:
            step = "try again later"
        return f"{_NAMES[host]} refuses to answer ({status}): {text.rstrip('. ')}. Next: {step}."

    def _clean(self, text: str) -> str:
        """Return a text without the key and without an emulator's token."""
        masked = text.replace(self._key, "KEY") if self._key else text
        return emulator.mask_token(masked)[:_SHOWN]


def _message(response: Any) -> str:
    try:
        error = json.loads(response.content)["error"]
        details = error.get("details") or ()
        reasons = [str(each["reason"]) for each in details if isinstance(each, dict) and "reason" in each]
        return " ".join([str(error["message"]), *(f"({reason})" for reason in reasons[:1])])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(". ")
