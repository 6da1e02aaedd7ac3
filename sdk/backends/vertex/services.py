"""The services of Google Cloud in addition to running jobs: schedules, images, prices, and checks of the account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..services import Services

if TYPE_CHECKING:
    from ...job.plan import Plan
    from ..deliveries import Deliveries
    from ..services import DrillService, ImageService, PriceService, SetupService
    from ..triggers import TriggerService


class VertexServices(Services):
    """The services of the backend "vertex". Each module is imported when its service is read."""

    @property
    def triggers(self) -> TriggerService:
        from .schedule.cloud_scheduler import CloudScheduler

        return CloudScheduler()

    @property
    def deliveries(self) -> Deliveries:
        from .schedule.deliveries import VertexDeliveries

        return VertexDeliveries()

    @property
    def images(self) -> ImageService:
        from .images.builds import VertexImages

        return VertexImages()

    @property
    def setup(self) -> SetupService:
        from .account.doctor import VertexSetup

        return VertexSetup()

    @property
    def prices(self) -> PriceService:
        from .account.prices import VertexPrices

        return VertexPrices()

    def most_runs(self, plan: Plan) -> int | None:
        from .checks.online import most_runs
        from .options import Vertex

        return most_runs(plan.facts.online.get("quotas", {}), plan.job, Vertex.of(plan.target))

    @property
    def drills(self) -> DrillService:
        from .job import disturb

        return disturb
