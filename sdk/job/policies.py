"""How a job is run: small values, each for one question. Frozen, checked at construction, JSON in and out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ..hardware import Provisioning, accelerators, pricing, regions
from ..hardware.catalog import PriceTable
from ..text import joined, parse_duration
from .findings import Facts, Finding, error
from .images import KEEPER, family_of, one_or_by_family
from .locations import Location, accelerator_name, location_texts, some_locations
from .raw import leaves
from .values import (
    Accepts,
    Bounds,
    Name,
    PathText,
    Seconds,
    Texts,
    Validator,
    Value,
    changed,
    cores_text,
    default,
    keeper_wait,
    metric_text,
    text_or_texts,
)

Start = Literal["auto", "fork", "spawn", "standby", "anew"]
# The folder of a bucket that is given without one.
PREFIX = "podlift"

if TYPE_CHECKING:
    from typing_extensions import Self


class JsonObject:
    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Any:
        from pydantic import JsonValue

        return handler.generate_schema(dict[str, JsonValue])


@dataclass(frozen=True, kw_only=True)
class Resources(Value):
    """How many tasks, and on which hardware. Every backend understands these.

    Args:
        workers: Training tasks, including the chief. At least 1.
        accelerator: Hardware of each task: a name from `podlift accelerators`.
        ps: Parameter servers, in addition to the workers. For ParameterServerStrategy.
        evaluator: Add a task outside the cluster that evaluates what the others save.
    """

    workers: Annotated[int, Bounds(ge=1, le=1000)] = 1
    accelerator: Annotated[str, Validator(accelerator_name)] = "cpu"
    ps: Annotated[int, Bounds(ge=0, le=1000)] = 0
    evaluator: bool = False


@dataclass(frozen=True, kw_only=True)
class Code(Value):
    """What is packaged and how it runs.

    Args:
        project: Folder to package. By default the nearest one above the entry that holds a pyproject.toml, requirements.txt
            or .git, else the script's own folder, or the current one for a module.
        include: Paths or patterns to package although a rule excludes them. Relative to the project; folders outside the
            project too.
        exclude: Patterns of files not to package, as in a .gitignore.
        requirements: Source of the requirements. "auto" reads uv.lock, requirements.txt or pyproject.toml of the
            project; "none" reads nothing; or the path of a requirements file, or a list of requirements.
        isolated: Run the tasks in a fresh environment of exactly the requirements.
        keras: The Keras that `tf.keras` is. "auto" keeps TensorFlow's choice (Keras 3); "legacy" gives tf_keras.
        writes: Which tasks write the files that Keras saves. "chief": callbacks and `model.save` reach the path they name
            from the chief only; the other tasks write to a temporary folder. "all": every task writes to that path.
        allow_secret: Names of variables and paths of files that may be stored although they look like credentials; "args" for
            the arguments.
    """

    project: Accepts[PathText | None, str | PurePath | None] = default(None)
    include: Accepts[Texts, Sequence[str | PurePath]] = default(())
    exclude: Accepts[Texts, Sequence[str | PurePath]] = default(())
    requirements: Accepts[
        Annotated[str | tuple[str, ...], Validator(text_or_texts, before=True)],
        str | PurePath | Sequence[str | PurePath],
    ] = default("auto")
    isolated: bool = False
    keras: Literal["auto", "legacy"] = "auto"
    writes: Literal["chief", "all"] = "chief"
    allow_secret: Accepts[Texts, Sequence[str]] = default(())


@dataclass(frozen=True, kw_only=True)
class Limits(Value):
    """How long things may take, and what they may cost.

    Args:
        timeout_s: Time limit of the whole run. On a cloud, of all its jobs together; a resume begins it again. None for no
            limit.
        max_steps: Training steps after which the run ends as a success. Every `fit` ends then, and `ctx.should_stop()` is
            true; None for no limit.
        hang_s: Time without a finished batch that counts as a hang. It counts from the first batch on; None for no limit. A
            program that reports no batches is judged by its output and its CPU time.
        idle_accelerator_s: Time without any use of the GPUs of a run after which it ends as a failure, and is not restarted. It
            counts in each attempt, while data is prepared too. None for no limit.
        grace_s: Time between asking a task to stop and killing it.
        exit_wait_s: Time that a finished chief waits for the other tasks. They are stopped then.
        max_cost_usd: Refuse a run that may cost more, in US dollars. It holds for all jobs of a run together, those before a
            resume included. None for no limit.
        allow_unknown_price: Start a run of unknown price despite `max_cost_usd`.
    """

    timeout_s: Seconds | None = None
    max_steps: Annotated[int, Bounds(ge=1)] | None = None
    hang_s: Seconds | None = 1800.0
    idle_accelerator_s: Seconds | None = None
    grace_s: Annotated[float, Bounds(ge=0)] = 5.0
    exit_wait_s: Annotated[float, Bounds(ge=0)] = 60.0
    max_cost_usd: Seconds | None = None
    allow_unknown_price: bool = False


@dataclass(frozen=True, kw_only=True)
class Retry(Value):
    """How often a run restarts by itself, by what ended the attempt.

    Args:
        user_errors: Restarts after an error in the program.
        infrastructure: Restarts after a kill, a hang, lack of memory or a failed machine.
        preemptions: Restarts after a task received SIGTERM or exited with 75. None for no limit.
    """

    user_errors: Annotated[int, Bounds(ge=0)] = 0
    infrastructure: Annotated[int, Bounds(ge=0)] = 3
    preemptions: Annotated[int, Bounds(ge=0)] | None = None


# The longest interval that podlift chooses between two saves.
LONGEST_PACED_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Checkpoints(Value):
    """When the state of a training is saved automatically, and which checkpoints are kept. See docs/how-to/checkpoints.md.

    Args:
        every_steps: Save after this many training steps; None leaves it to `every_s`.
        every_s: Save this many seconds after the last save; without `every_steps` also at ends of epochs, for at most 5%.
            "auto", which `every_steps` replaces: as often as saves cost 1% of the time, but at least every 5 minutes, and at
            most every 5 s, or 30 s in a bucket.
        keep_last: Newest checkpoints to keep. The best one, pinned ones and the ends of `fit` calls are kept too.
        best: Also keep the checkpoint with the best value of this metric. It is a metric of `fit`; "val_loss" is best when it
            is low; write "max:val_f1" or "min:val_cost" if the name does not show it.
        on_busy: Skip a checkpoint that is due while the last one is being written. "block" makes the training wait.
        auto: Save and restore `fit` without any code in the program.
        resume_from: Start from the state of another run. Its name or directory, or one of its checkpoints (`RUN@STEP`).
            Parameters and optimizer are taken over; the training itself starts from the beginning.
    """

    every_steps: Annotated[int, Bounds(ge=1)] | None = None
    every_s: Seconds | Literal["auto"] | None = "auto"
    keep_last: Annotated[int, Bounds(ge=1)] = 3
    best: Annotated[str, Validator(metric_text)] | None = None
    on_busy: Literal["skip", "block"] = "skip"
    auto: bool = True
    resume_from: Accepts[PathText | None, str | PurePath | None] = default(None)

    @property
    def is_paced(self) -> bool:
        """True if podlift chooses the interval while the run trains."""
        return self.every_s == "auto" and self.every_steps is None

    @property
    def seconds(self) -> float | None:
        """The interval, if it is a fixed one."""
        return None if isinstance(self.every_s, str) else self.every_s


def shortest_s(store: str) -> float:
    """Return the shortest interval that podlift chooses between two saves in a store."""
    return 30.0 if store.startswith("gs://") else 5.0


# Vertex AI documents no longer jobs.
LONGEST_S = 7 * 86400.0
_KEEPER_MARGIN_S = 600.0
# What a patch of the request changes that has a price: the number of machines, or their kind.
_RENTED = re.compile(
    r"jobSpec(\.workerPoolSpecs(\.[^.]*(\.(replicaCount|machineSpec(\.(machineType|accelerator\w+|tpuTopology))?))?)?)?"
)


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """A small job that waits for a run: its service account, that of the jobs that it submits, and what it rents."""

    account: str
    program_account: str | None
    rental: pricing.Rental
    life_s: float  # the longest time for which it waits
    image: str | None = None  # None for that of the program

    @property
    def machine(self) -> str:
        image = f" with the image {self.image}" if self.image else ""
        return f"one {self.rental.pools[0].machine} in {self.rental.regions[0]}{image}"

    @property
    def limit_s(self) -> float:
        """The limit of its job, which its price counts: it ends by itself before."""
        return min(self.life_s + _KEEPER_MARGIN_S, LONGEST_S)

    @property
    def price(self) -> pricing.Price:
        return pricing.price(replace(self.rental, timeout_s=self.limit_s))


@dataclass(frozen=True, kw_only=True)
class Target(Value):
    """Where a run goes: the options of one backend, and what every target can tell about them."""

    # The fields that `podlift init` proposes, after a look at the account of the backend's service.
    proposed: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, target: Target) -> Self:
        """Return a target that is known to be of this class."""
        if not isinstance(target, cls):
            raise TypeError(f"Expected a {cls.__name__}. Received: {target!r}.")
        return target

    @property
    def shape(self) -> Literal["chief", "workers"]:
        """A chief and workers, or workers only."""
        return "chief"

    @property
    def start(self) -> Start:
        """How task processes of this machine start, and whether one with TensorFlow stands by for restarts."""
        return "spawn"

    @property
    def bucket(self) -> str | None:
        """The target's own setting of a bucket for runs."""
        return None

    @property
    def isolated(self) -> bool:
        """True if the tasks reach no other machine."""
        return False

    @property
    def real_gpus(self) -> bool:
        """True if tasks of this machine use its own GPUs."""
        return False

    def rentals(
        self, resources: Resources, limits: Limits, table: PriceTable | None = None
    ) -> tuple[pricing.Rental, ...]:
        """Return what a job rents in each of its locations, if anything; `table` has prices that were read."""
        return ()

    def kept_by(self, limits: Limits, retry: Retry, table: PriceTable | None = None) -> Keeper | None:
        """Return who waits for the run and submits its next jobs, if that was asked for."""
        return None

    def located(self, resources: Resources, facts: Facts) -> tuple[Target, list[Finding]]:
        """Return the target with the locations that depend on prices, and what to say of them."""
        return self, []

    def lines(self, resources: Resources) -> list[tuple[str, str]]:
        """Return where a job runs, as (label, text), for a plan."""
        return []


@dataclass(frozen=True, kw_only=True)
class Local(Target):
    """How a run on this machine behaves: `sdk.submit("train.py", workers=2, backend=Local(network="isolated"))`.

    Args:
        network: This machine's network for the tasks, or an isolated one. "isolated": they run in a network namespace that
            holds only loopback, so that no other machine can reach TensorFlow's servers, which listen on every interface
            without authentication.
        start: Fork task processes from one with TensorFlow, or spawn each. "fork": all are forked from a process that has
            imported TensorFlow and Keras, and that stands by for restarts while 1.5 GB of memory are free. "spawn": each task
            is a new Python process, at each restart too. "auto": "fork" on Linux if there are several tasks and nothing in the
            program speaks against it. "standby": as "auto", and a single task has such a process for its restarts too, which
            imports at low priority while the task trains. "anew": as "auto", but nothing stands by.
        cluster: A chief and workers, or workers only. "chief" is what Vertex AI gives; "workers" is for scripts in which task
            0 of `worker` is the chief.
        gpus: Stand-ins or this machine's own GPUs, if the accelerator is a GPU. "stand-in": logical CPU devices. "real": each
            task has GPUs of its own, of any type.
        cores: How the tasks divide the CPUs of this machine. "share": each of several tasks has equally many of its own, and as
            many threads. "all": each may use all. A number: as many threads for each task, also for a single one, on any CPU.
    """

    network: Literal["host", "isolated"] = "host"
    start: Start = "auto"
    cluster: Literal["chief", "workers"] = "chief"
    gpus: Literal["stand-in", "real"] = "stand-in"
    cores: Accepts[Annotated[str, Validator(cores_text, before=True)], str | int] = default("share")

    @property
    def shape(self) -> Literal["chief", "workers"]:
        return self.cluster

    @property
    def isolated(self) -> bool:
        return self.network == "isolated"

    @property
    def real_gpus(self) -> bool:
        return self.gpus == "real"


@dataclass(frozen=True, kw_only=True)
class Vertex(Target):
    """Where and how a run uses Vertex AI: `sdk.submit("train.py", backend=Vertex(project="my-project", bucket="my-bucket"))`.

    Args:
        project: Id of the Google Cloud project.
        regions: Locations to run in, in this order. Each is REGION[:PROVISIONING[:ACCELERATOR]], such as "us-east1",
            "us-central1:spot" or "europe-west4:standard:l4:2". When one has no machines or no quota, or takes them away more
            often than Vertex AI retries, the run goes on in the next one. "cheapest" is the region of the bucket; with regions
            after it, as in "cheapest,us-east1,us-west1", those in the order of their prices.
        bucket: Bucket for runs: BUCKET or BUCKET/PREFIX. `root` overrides it; the prefix is "podlift" by default.
        service_account: Service account of the program. By default Vertex AI's own agent.
        image: Container image, or one for each family of hardware: "cpu", "gpu" or "tpu". Any image with Python and TensorFlow.
            `podlift image` builds them and records them by the family. "keeper": another one for keepers, those of schedules
            too, which need no TensorFlow.
        machine: Machine type. By default the one of the accelerator. A location with an accelerator of its own has its default.
        disk_gb: Size of each boot disk, in GB.
        provisioning: On-demand, spot or flex-start machines. "spot": cheaper machines that may be taken away at any time;
            "flex": waits until machines are free.
        keeper: Also run a small CPU job, the keeper, which waits for the run and submits its next jobs in the place of your
            processes. false, true, or the longest wait, from "1m" to "7d". By default that is the timeout of the run for each
            attempt that its retry budgets allow. It needs a service account.
        keeper_service_account: Service account of the keeper. By default that of the program.
        own_tensorflow: The image has a TensorFlow of your own, which trains on accelerators that no released one does: B200,
            GB200 and RTX PRO 6000.
        network: Network of the machines, by its full name: one that is peered with Vertex AI, or a network attachment for a
            Private Service Connect interface. Keepers have it too.
        kms_key: Key of Cloud KMS that encrypts the jobs' disks and records, by its full name. It is in their region.
            Keepers have it too. A bucket has a key of its own.
        tensorboard: TensorBoard of Vertex AI to which the service copies what is written to its output directory's logs,
            by its full name. It needs a service account.
        persistent_resource: Id of a persistent resource, of the jobs' region, on which they run. It is billed until it is
            deleted.
        labels: Labels of the jobs, in addition to podlift's.
        raw: JSON to merge into the request last, such as `{"jobSpec": {"scheduling": {"disableRetries": true}}}`. For fields
            that podlift does not know. A list is replaced as a whole, or one of its items by its number; None removes.
    """

    proposed: ClassVar = ("project", "regions", "bucket", "service_account", "image")

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
        """The longest time for which the keeper waits; None if nothing was said about it."""
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
        """True if no location has a provisioning or an accelerator of its own."""
        return self.region_names == tuple(dict.fromkeys(self.regions))

    def locations_for(self, resources: Resources) -> tuple[Location, ...]:
        """Return the locations of a job in their order, each with its provisioning and its accelerator."""
        own = ((location.region, location.provisioning, location.accelerator) for location in self.locations)
        return tuple(
            Location(region, provisioning or self.provisioning, accelerator or resources.accelerator)
            for region, provisioning, accelerator in own
        )

    def at(self, location: Location, resources: Resources) -> tuple[Vertex, Resources]:
        """Return the target and the resources of a job that knows this location only."""
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
        """Return the image of each family of hardware in the locations of a job; one given for all of them is that of ""."""
        families = dict.fromkeys(family_of(str(location.accelerator)) for location in self.locations_for(resources))
        return (
            {"": self.image}
            if isinstance(self.image, str)
            else {family: self.image_by_family.get(family) for family in families}
        )

    def image_on(self, accelerator: str) -> str | None:
        """Return the image of a job on an accelerator."""
        return self.image if isinstance(self.image, str) else self.image_by_family.get(family_of(accelerator))

    @property
    def images(self) -> dict[str, str]:
        """The image of each family of hardware, and of keepers; one for all hardware is that of ""."""
        return {"": self.image} if isinstance(self.image, str) else self.image or {}

    @property
    def image_by_family(self) -> dict[str, str]:
        """The images without that of keepers."""
        return {family: image for family, image in self.images.items() if family != KEEPER}

    @property
    def keeper_image(self) -> str | None:
        """The image of keepers; None for that of the program."""
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
        """Return what a job rents in a location, by default in its first one."""
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
        life_s = self.keep_for_s
        if life_s is None and limits.timeout_s is not None and retry.preemptions is not None:
            life_s = limits.timeout_s * (1 + retry.user_errors + retry.infrastructure + retry.preemptions)
        return Keeper(
            account=account,
            program_account=self.service_account,
            rental=pricing.Rental(pools=accelerators.pools("cpu"), regions=self.region_names[:1], table=table),
            life_s=LONGEST_S if life_s is None else min(life_s, LONGEST_S),
            image=None if self.keeper_image in self.image_by_family.values() else self.keeper_image,
        )

    def located(self, resources: Resources, facts: Facts) -> tuple[Target, list[Finding]]:
        target = self.with_images(resources)
        if regions.CHEAPEST not in self.regions:
            return target, []
        bucket = _bucket_region(facts)
        named = [name for name in self.regions if name != regions.CHEAPEST]
        if not named and not bucket:
            # The default stands in for it, so that the other checks can go on.
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
        """Return the target with the images that a job needs; if it is one, it is like one that was given for all hardware."""
        images = self.images_for(resources)
        if len(images) == 1 and self.keeper_image is None:
            return changed(self, image=next(iter(images.values())))
        images |= {KEEPER: self.keeper_image}
        return changed(self, image={family: image for family, image in images.items() if image} or None)

    def lines(self, resources: Resources) -> list[tuple[str, str]]:
        lines = [("project", self.project or "<project>")]
        images = self.images_for(resources)
        lines += [(name.replace("_", " "), value) for name, value in self.passed_on.items()]
        shown = [
            ("image" if len(images) == 1 else f"image {name}", image or "<image>") for name, image in images.items()
        ]
        if self.plain:
            lines += [("region", ", then ".join(self.regions)), *shown]
            pools = [(f"pool {pool.index}", f"{pool.role}: {self._machines(pool)}") for pool in self.pools(resources)]
            return [*lines, *pools]
        for number, location in enumerate(self.locations_for(resources), 1):
            pools = [(pool.role, self._machines(pool)) for pool in self.pools(resources, location)]
            how = pricing.PROVISIONING_WORDS[location.provisioning or self.provisioning]
            lines.append((f"location {number}", f"{location.region} {how}; {'; '.join(map(': '.join, pools))}"))
        return [*lines, *shown]

    def _machines(self, pool: accelerators.Pool) -> str:
        row = pool.accelerator
        chips = "" if row.family == "cpu" else f" with {row.title or row.name} x {row.count or row.chips}"
        return f"{pool.replicas} x {pool.machine}{chips}, {self.disk_gb} GB of disk"


def _bucket_region(facts: Facts) -> str:
    """Return the region of the bucket, "" if it is not known or not one region."""
    about = facts.online.get("bucket", {}).get("about", {})
    return str(about.get("location", "")).lower() if about.get("locationType", "region") == "region" else ""


# Whole words of a metric's name: `previous_loss` has no IoU.
_HIGHER_IS_BETTER = {
    "acc", "accuracy", "auc", "auroc", "bleu", "f1", "f1score", "iou", "miou", "precision", "r2", "r2score", "recall",
}  # fmt: skip
_LOWER_IS_BETTER = {"cost", "error", "loss", "mae", "mse", "perplexity", "rmse"}


def _directions(name: str) -> tuple[bool, bool]:
    """Return whether a name has a word for a value that is better when it is high, and one for a value that is low."""
    whole = set(re.split(r"[^a-z0-9]+", name.lower().replace("io_u", "iou")))  # Keras names MeanIoU so
    words = {*whole, *(word.rstrip("0123456789") for word in whole)}
    return not words.isdisjoint(_HIGHER_IS_BETTER), not words.isdisjoint(_LOWER_IS_BETTER)


def shows_mode(best: str) -> bool:
    """Return whether a metric's name, or what is written before it, shows if a high or a low value is better."""
    higher, lower = _directions(best)
    return ":" in best or higher != lower


def metric_and_mode(best: str) -> tuple[str, str]:
    """Return ("val_f1", "max") for "max:val_f1"."""
    mode, separator, name = best.partition(":")
    if separator:
        return name, mode
    higher, lower = _directions(best)
    return best, "max" if higher and not lower else "min"
