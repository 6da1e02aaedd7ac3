"""A weekly schedule of the program train.py in the current folder."""

from collections.abc import Callable
from typing import Any

from sdk import Vertex
from sdk.planning.settings.merge import Destination
from sdk.schedules import creation

ACCOUNT = "keeper@podlift.iam.gserviceaccount.com"
WEEK_S = 7 * 86400.0


def prepared(
    place: Callable[..., Vertex], cron: str = "0 3 * * 1", job: dict[str, object] | None = None, **more: Any
) -> creation.Prepared:
    """Prepare it with more fields of the ScheduleSpec, and of the Vertex that `place` returns, as keywords."""
    rules = {name: more.pop(name) for name in list(more) if name in creation.ScheduleSpec.__dataclass_fields__}
    spec = creation.draft(**{"name": "weekly", "cron": cron, "time_zone": "Europe/Berlin", **rules})
    return creation.prepare(spec, "train.py", job or {}, Destination(backend=place(**more)))
