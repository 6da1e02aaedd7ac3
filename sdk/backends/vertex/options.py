"""The options of Vertex AI, with the locations of a job and the machines it rents there. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, cast, get_args

from ...errors import InputError, nearest
from ...hardware import Provisioning, accelerators, pricing, regions
from ...hardware.catalog import PriceTable
from ...job.findings import Facts, Finding, error
from ...job.images import KEEPER, family_of, one_or_by_family
from ...job.policies import Limits, Resources, Retry, accelerator_name
from ...job.raw import leaves
from ...job.targets import LONGEST_S, Keeper, Target
from ...job.values import TRUTH, Accepts, Bounds, JsonObject, Name, Validator, changed, default, text_or_texts
from ...text import compact_duration, joined, parse_duration

# Fields of a patch that change the price: the number of machines, or their type.
_RENTED = re.compile(
    r"jobSpec(\.workerPoolSpecs(\.[^.]*(\.(replicaCount|machineSpec(\.(machineType|accelerator\w+|tpuTopology))?))?)?)?"
)


@dataclass(frozen=True)
class Location:
    """Where a job may run: REGION[:PROVISIONING[:ACCELERATOR]]. None for the provisioning of the target, and for the
    accelerator of the job. A region that does not exist is a finding of the checks."""

    region: str
    provisioning: Provisioning | None = None
    accelerator: str | None = None

    @classmethod
    def parse(cls, text: str) -> Location:
        """Return the location that a text means; InputError with every mistake."""
        region, provisioning, accelerator, *_ = [*(part.strip() for part in text.lower().split(":", 2)), "", ""]
        choices, problems, name = get_args(Provisioning), [], None
        if provisioning and provisioning not in choices:
            problems.append(f"unknown provisioning. Received: {provisioning!r}. {nearest(provisioning, choices)}")
        try:
            name = accelerator_name(accelerator) if accelerator else None
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError([f"{text}: {problem}" for problem in problems])
        return cls(region, cast("Provisioning | None", provisioning or None), name)

    def __str__(self) -> str:
        return ":".join([self.region, self.provisioning or "", self.accelerator or ""]).rstrip(":")


def location_texts(value: object) -> object:
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else text_or_texts(value)


def some_locations(value: Sequence[str]) -> Sequence[str]:
    """Return the texts of locations, each in its shortest form; every mistake in them at once."""
    if not value:
        raise ValueError("must name one at least, such as us-central1")
    texts, problems = list[str](), list[str]()
    for text in value:
        try:
            texts.append(str(Location.parse(text)))
        except InputError as error:
            problems += error.problems
    if regions.CHEAPEST in {text.partition(":")[0] for text in texts} and ":" in "".join(texts):
        problems.append(f"{regions.CHEAPEST!r} compares regions: name them without a provisioning or an accelerator")
    if problems:
        raise InputError([f"regions: {problem}" for problem in problems])
    return tuple(texts)


def keeper_wait(value: object) -> object:
    """Return whether a keeper waits, or its longest wait as text: "7d"."""
    text = str(value).strip().lower()
    if text in TRUTH:
        return TRUTH[text]
    try:
        # A number without a unit would be seconds, which is never meant.
        seconds = float(value) if isinstance(value, float) else parse_duration(text, unit_required=True)
    except ValueError:
        seconds = 0.0
    if not 60 <= seconds < float("inf"):
        raise ValueError(
            "must be true, false or the longest wait, of a minute at least, such as 7d (--vertex-keeper true, then the entry)"
        )
    return compact_duration(seconds)


@dataclass(frozen=True, kw_only=True)
class Vertex(Target):
    """Where and how a run uses Vertex AI: `sdk.submit("train.py", backend=Vertex(project="my-project", bucket="my-bucket"))`.

    Args:
        project: Id of the Google Cloud project.
        regions: Locations to run in, in this order. Each is REGION[:PROVISIONING[:ACCELERATOR]], such as "us-east1",
            "us-central1:spot" or "europe-west4:standard:l4:2". When a location has no machines or no quota, or preempts them
            more often than Vertex AI retries, the run continues in the next one. "cheapest" is the region of the bucket; with
            regions after it, as in "cheapest,us-east1,us-west1", these regions in the order of their prices.
        bucket: Bucket for runs: BUCKET or BUCKET/PREFIX. `root` overrides it; the prefix is "podlift" by default.
        service_account: Service account of the program. By default Vertex AI's own agent.
        image: Container image, or one for each family of hardware: "cpu", "gpu" or "tpu". Any image with Python and TensorFlow.
            `podlift image` builds them and records them by the family. "keeper": another one for keepers, also for keepers of
            schedules, which need no TensorFlow.
        machine: Machine type. By default the accelerator's. A location with its own accelerator uses that default.
        disk_gb: Size of each boot disk, in GB.
        provisioning: On-demand, spot or flex-start machines. "spot": cheaper machines that may be preempted at any time;
            "flex": waits until machines are free.
        keeper: Also run a small CPU job, the keeper, which waits for the run and submits its next jobs in the place of your
            processes. false, true, or the longest wait, from "1m" to "7d". By default the timeout of the run, times the
            attempts that its retry budgets allow. It needs a service account.
        keeper_service_account: Service account of the keeper. By default the account of the program.
        own_tensorflow: The image has your own build of TensorFlow, for accelerators that no release supports: B200, GB200 and
            RTX PRO 6000.
        network: Network of the machines, by its full name: one that is peered with Vertex AI, or a network attachment for a
            Private Service Connect interface. Keepers have it too.
        kms_key: Key of Cloud KMS that encrypts the jobs' disks and records, by its full name. It is in their region. Keepers
            have it too. The key of a bucket is set at the bucket.
        tensorboard: TensorBoard of Vertex AI to which the service copies the logs in its output directory, by its full name. It
            needs a service account.
        persistent_resource: Id of a persistent resource, of the jobs' region, on which they run. It is billed until it is
            deleted.
        labels: Labels of the jobs, in addition to podlift's.
        raw: JSON to merge into the request last, such as `{"jobSpec": {"scheduling": {"disableRetries": true}}}`. For fields
            that podlift does not know. A list is replaced as a whole, or one of its items by its number; None removes.
    """

    title: ClassVar[str] = "Vertex AI"
    metavars: ClassVar[Mapping[str, str]] = {
        "project": "ID", "regions": "LOCATION[,LOCATION]", "bucket": "BUCKET", "service_account": "EMAIL", "image": "URI|JSON",
        "machine": "TYPE", "disk_gb": "N", "labels": "JSON", "raw": "JSON", "network": "NETWORK", "kms_key": "KEY",
        "tensorboard": "NAME", "persistent_resource": "ID", "keeper": "true|false|DURATION", "keeper_service_account": "EMAIL",
    }  # fmt: skip
    proposed: ClassVar[tuple[str, ...]] = ("project", "regions", "bucket", "service_account", "image")

    project: Name | None = None
    regions: Accepts[
        Annotated[tuple[Name, ...], Validator(location_texts, before=True), Validator(some_locations)],
        str | Sequence[str],
    ] = default((regions.DEFAULT,))
    bucket: Name | None = None
    service_account: Name | None = None
    image: Accepts[
        Annotated[str | dict[str, str], Validator(one_or_by_family, before=True)] | None,
        str | Mapping[str, str] | None,
    ] = default(None)
    machine: Name | None = None
    disk_gb: Annotated[int, Bounds(ge=1)] = 100
    provisioning: Provisioning = "standard"
    keeper: Accepts[Annotated[bool | str, Validator(keeper_wait, before=True)], bool | str | float] = default(False)
    keeper_service_account: Name | None = None
    own_tensorflow: bool = False
    network: Name | None = None
    kms_key: Name | None = None
    tensorboard: Name | None = None
    persistent_resource: Name | None = None
    labels: dict[str, str] = field(default_factory=dict)
    raw: Annotated[dict[str, object], JsonObject()] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Reading a plan checks no field.
        some_locations(self.regions)

    @property
    def keep_for_s(self) -> float | None:
        """The longest time for which the keeper waits; None if it is not set."""
        return parse_duration(self.keeper) if isinstance(self.keeper, str) else None

    @property
    def locations(self) -> tuple[Location, ...]:
        return tuple(map(Location.parse, self.regions))

    @property
    def region_names(self) -> tuple[str, ...]:
        """The regions of all locations, each once."""
        return tuple(dict.fromkeys(location.region for location in self.locations))

    @property
    def plain(self) -> bool:
        """True if no location sets its own provisioning or accelerator."""
        return self.region_names == tuple(dict.fromkeys(self.regions))

    def locations_for(self, resources: Resources) -> tuple[Location, ...]:
        """Return the locations of a job in their order, each with its provisioning and its accelerator."""
        own = ((location.region, location.provisioning, location.accelerator) for location in self.locations)
        return tuple(
            Location(region, provisioning or self.provisioning, accelerator or resources.accelerator)
            for region, provisioning, accelerator in own
        )

    def at(self, location: Location, resources: Resources) -> tuple[Vertex, Resources]:
        """Return the target and the resources of a job in this location only."""
        other = location.accelerator not in (None, resources.accelerator)
        target = changed(
            self,
            regions=(location.region,),
            provisioning=location.provisioning or self.provisioning,
            machine=None if other else self.machine,
            image=self.image_on(location.accelerator or resources.accelerator),
        )
        return target, changed(resources, accelerator=location.accelerator) if other else resources

    def images_for(self, resources: Resources) -> dict[str, str | None]:
        """Return the image of each family of hardware in the locations of a job; the key "" holds one image for all of them."""
        families = dict.fromkeys(family_of(str(location.accelerator)) for location in self.locations_for(resources))
        return (
            {"": self.image}
            if isinstance(self.image, str)
            else {family: self.images.get(family) for family in families}
        )

    def image_on(self, accelerator: str) -> str | None:
        """Return the image of a job on an accelerator."""
        return self.image if isinstance(self.image, str) else self.images.get(family_of(accelerator))

    @property
    def images(self) -> dict[str, str]:
        """The image of each family of hardware, and of keepers; the key "" holds one image for all hardware."""
        return {"": self.image} if isinstance(self.image, str) else self.image or {}

    @property
    def keeper_image(self) -> str | None:
        """The image of keepers; None for the program's image."""
        return self.images.get(KEEPER)

    @property
    def passed_on(self) -> dict[str, str]:
        """The names of other resources that a request passes on, by the setting."""
        named = {name: getattr(self, name) for name in ("network", "kms_key", "tensorboard", "persistent_resource")}
        return {name: value for name, value in named.items() if value}

    @property
    def named_images(self) -> dict[str, str]:
        """The images that a plan names, by the setting or its part."""
        return {f"image.{family}".rstrip("."): image for family, image in self.images.items()}

    def pools(self, resources: Resources, location: Location | None = None) -> tuple[accelerators.Pool, ...]:
        """Return the machines of a job in a location, by default in its first one."""
        target, own = self.at(location or self.locations_for(resources)[0], resources)
        return accelerators.pools(own.accelerator, own.workers, own.ps, own.evaluator, machine=target.machine)

    def replicas(self, resources: Resources) -> tuple[int, ...]:
        """Return the number of replicas in each location with which `ctx.strategy` trains."""
        rows = [accelerators.lookup(str(location.accelerator)) for location in self.locations_for(resources)]
        return tuple(1 if resources.ps else accelerators.in_step(row, resources.workers) for row in rows)

    def rental(
        self,
        resources: Resources,
        limits: Limits,
        location: Location | None = None,
        table: PriceTable | None = None,
    ) -> pricing.Rental:
        """Return the machines that a job rents in a location, by default in its first one."""
        location = location or self.locations_for(resources)[0]
        return pricing.Rental(
            pools=self.pools(resources, location),
            regions=(location.region,),
            provisioning=location.provisioning or self.provisioning,
            disk_gb=self.disk_gb,
            timeout_s=limits.timeout_s,
            table=table,
            unpriced=("the machines that vertex_raw changes",) if any(map(_RENTED.fullmatch, leaves(self.raw))) else (),
        )

    def rentals(
        self, resources: Resources, limits: Limits, table: PriceTable | None = None
    ) -> tuple[pricing.Rental, ...]:
        return tuple(self.rental(resources, limits, location, table) for location in self.locations_for(resources))

    def kept_by(self, limits: Limits, retry: Retry, table: PriceTable | None = None) -> Keeper | None:
        """Return the keeper: one CPU machine on demand, in the region of the first location."""
        account = self.keeper_service_account or self.service_account
        if not self.keeper or account is None:
            return None
        life_s, images = self.keep_for_s, {family: image for family, image in self.images.items() if family != KEEPER}
        if life_s is None and limits.timeout_s is not None and retry.preemptions is not None:
            life_s = limits.timeout_s * (1 + retry.user_errors + retry.infrastructure + retry.preemptions)
        return Keeper(
            account=account,
            program_account=self.service_account,
            rental=pricing.Rental(pools=accelerators.pools("cpu"), regions=self.region_names[:1], table=table),
            life_s=LONGEST_S if life_s is None else min(life_s, LONGEST_S),
            image=None if self.keeper_image in images.values() else self.keeper_image,
        )

    def located(self, resources: Resources, facts: Facts) -> tuple[Target, list[Finding]]:
        target = self.with_images(resources)
        if regions.CHEAPEST not in self.regions:
            return target, []
        bucket = _bucket_region(facts)
        named = [name for name in self.regions if name != regions.CHEAPEST]
        if not named and not bucket:
            # The default stands in for it, so that the other checks can continue.
            message = (
                "vertex_regions='cheapest' stays in the region of the bucket, which is not known here. Next: podlift plan "
                "--online, or name the regions to choose from, such as vertex_regions='cheapest,us-central1,us-east1'"
            )
            return changed(target, regions=(regions.DEFAULT,)), [error(message)]
        candidates = list(dict.fromkeys(named or [bucket]))
        rental = self.rental(resources, Limits(), Location(candidates[0]), facts.prices)
        prices, findings = pricing.by_price(rental, candidates), []
        if len(prices) > 1 and prices[0].own is None:
            how = f"{pricing.PROVISIONING_WORDS[self.provisioning]} in {joined(candidates, 'or')}"
            message = f"vertex_regions='cheapest' needs prices, and none is known {how}. Next: {pricing.REFRESH}"
            findings = [error(f"{message}, or give the regions in an order of your own")]
        return changed(target, regions=tuple(price.region for price in prices)), findings

    def with_images(self, resources: Resources) -> Vertex:
        """Return the target with the images that a job needs; a single one counts for all hardware."""
        images = self.images_for(resources)
        if len(images) == 1 and self.keeper_image is None:
            return changed(self, image=next(iter(images.values())))
        images |= {KEEPER: self.keeper_image}
        return changed(self, image={family: image for family, image in images.items() if image} or None)

    def lines(self, resources: Resources) -> list[tuple[str, str]]:
        lines = [("project", self.project or "<project>")]
        images = self.images_for(resources)
        lines += [(name.replace("_", " "), value) for name, value in self.passed_on.items()]
        image_lines = [
            ("image" if len(images) == 1 else f"image {name}", image or "<image>") for name, image in images.items()
        ]
        if self.plain:
            lines += [("region", ", then ".join(self.regions)), *image_lines]
            pools = [(f"pool {pool.index}", f"{pool.role}: {self._machines(pool)}") for pool in self.pools(resources)]
            return [*lines, *pools]
        for number, location in enumerate(self.locations_for(resources), 1):
            pools = [(pool.role, self._machines(pool)) for pool in self.pools(resources, location)]
            how = pricing.PROVISIONING_WORDS[location.provisioning or self.provisioning]
            lines.append((f"location {number}", f"{location.region} {how}; {'; '.join(map(': '.join, pools))}"))
        return [*lines, *image_lines]

    def _machines(self, pool: accelerators.Pool) -> str:
        row = pool.accelerator
        chips = "" if row.family == "cpu" else f" with {row.title or row.name} x {row.count or row.chips}"
        return f"{pool.replicas} x {pool.machine}{chips}, {self.disk_gb} GB of disk"


def _bucket_region(facts: Facts) -> str:
    """Return the region of the bucket, "" if it is not known or not one region."""
    about = facts.online.get("bucket", {}).get("about", {})
    return str(about.get("location", "")).lower() if about.get("locationType", "region") == "region" else ""
