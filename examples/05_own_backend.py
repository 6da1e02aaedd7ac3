"""A backend of your own: it runs plans on this machine, and writes down each run that it starts.

Use it:           python examples/05_own_backend.py
Run its contract: pytest examples/05_own_backend.py
"""

from dataclasses import replace
from pathlib import Path

import sdk
from sdk import backends
from sdk.backends.base import Capabilities, Request
from sdk.testing.backend import BackendContract
from sdk.testing.fake_backend import FakeBackend


class Journal(FakeBackend):
    """How tasks run, and the handle that `open` returns, are those of the smallest backend, `sdk.testing.fake_backend`."""

    # All that podlift asks about a backend: no other module tests its name.
    capabilities = Capabilities(runs_here=True, supervised_here=True, needs_bucket=False)

    def render(self, plan: sdk.Plan) -> Request:
        """Pure: what `start` will do, as printable data."""
        request = super().render(plan)
        return replace(request, body={**request.body, "journal": f"{plan.run_id} on {plan.backend}"})

    def start(self, request: Request) -> None:
        """Idempotent: a second call for the same run starts nothing."""
        journal, line = Path(request.plan.root) / "journal.txt", str(request.body["journal"])
        if not journal.exists() or line not in journal.read_text():
            with journal.open("a") as file:
                print(line, file=file)
        super().start(request)


backends.register("journal", Journal)


class TestJournal(BackendContract):
    name = "journal"


if __name__ == "__main__":
    run = sdk.submit("examples/ci-project/points.py", backend="journal", name="own")
    print(run.wait().state, (Path(run.plan.root) / "journal.txt").read_text())
