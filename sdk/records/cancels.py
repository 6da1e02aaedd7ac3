"""Cancel requests in a bucket: each is for one job of a run, and counts for every job that follows without a resume."""

from __future__ import annotations

from ..job.layout import RunPaths
from ..storage.store import Store

_KEYS = RunPaths("")


def requests(store: Store, resumes: int, since: int) -> list[str]:
    """Return the keys of the cancel requests for a run that was resumed `since` times by users, and `resumes` times in all."""
    found = []
    for each in store.list(f"{_KEYS.control}/"):
        number = each.key.rpartition("/")[2].partition("-")[0]
        if number.isdecimal() and since <= int(number) <= resumes:
            found.append(each.key)
    return found
