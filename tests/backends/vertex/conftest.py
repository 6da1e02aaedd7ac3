"""Google's own type judges every request that these tests render."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sdk.backends.vertex import request
from sdk.spec.plan import Plan
from sdk.spec.policies import Vertex


@pytest.fixture(autouse=True)
def _google_reads_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    render = request.render

    def judged(plan: Plan, **more: Any) -> dict[str, Any]:
        from google.cloud.aiplatform_v1 import CustomJob

        body = render(plan, **more)
        # A patch is judged before the job is submitted.
        if not Vertex.of(plan.target).raw:
            CustomJob.from_json(json.dumps(body))
        return body

    monkeypatch.setattr(request, "render", judged)
