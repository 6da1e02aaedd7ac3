"""One request of a scheduled job, for the service and for tests of its users: it imports nothing slow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One request that Cloud Scheduler has sent for a job: its slot, its time and its result.

    `number` counts the attempts of all jobs. `retry` counts from 1, and is 0 for the first attempt. `code` is one of
    `google.rpc.Code`, 0 for success. `http_status` is 0 without an answer; `text` is the beginning of the answer.
    """

    number: int
    job: str
    schedule_time: str
    attempt_time: str
    retry: int
    forced: bool
    code: int
    http_status: int
    text: str
