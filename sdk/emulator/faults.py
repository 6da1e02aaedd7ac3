"""Fault rules: which fault hits which request, job or line. This module only chooses; the services apply the faults."""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from ..errors import InputError, nearest
from .errors import ApiError, words
from .gcs.routes import PARAMETERS

E = TypeVar("E", bound=ApiError)
# The faults of any request, for all services.
CommonKind = Literal[
    "latency",  # wait `seconds`, then continue
    "status_before",  # answer `status`; nothing happens
    "drop_before",  # cut the connection; nothing happens
    "status_after",  # do it, then answer `status`
    "drop_after",  # do it, then cut the connection
    "silent_before",  # never answer, until the client has left or the rules are replaced; nothing happens
    "silent_after",  # do it, then never answer
    "deny",  # answer 403: the caller lacks the permission for it; nothing happens
]
StorageKind = Literal[
    CommonKind,
    "truncate",  # cut the connection after the first `at_byte` bytes of the answer, by default in its middle
    "stall",  # wait `seconds`, see `at`
    "drip",  # read the body and write the answer at `bytes_per_s`
    "corrupt",  # change byte number `at_byte`, by default 0, of an upload or a download, see `at`
    "lose_session",  # forget the resumable upload, answer `status` (404 or 410)
]
VertexKind = Literal[
    CommonKind,
    "quota",  # reject the creation of the job: 429 with the metrics that it needs
    "late_list",  # leave a new job out of the next `lists` lists, or for `seconds`
    "hold",  # leave a new job in the queue for `seconds`, or until rules without this one are set
    "expire",  # leave a new job in the queue for `seconds`, and let it expire
    "late_line",  # leave a line out of the log for `seconds`, or until the rules are replaced
    "lost_line",  # never store a line in the log
    "stockout",  # let an attempt to get machines fail
    "preempt",  # take away the machine of `replica`
    "kill",  # kill the container of `replica`
    "oom",  # let `replica` run out of memory
    "internal",  # let the service itself fail
    "fail_build",  # let a build of Cloud Build end as set by `ends`; "hold" lets it continue
]
SchedulerKind = Literal[
    CommonKind,  # with the operation "jobs.attempt" also to the request of a job to its target
    "duplicate",  # send the request of a job twice
    "early",  # send it `seconds` (0.2) before its slot
    "late",  # send it `seconds` (3000) after its slot
    "disable",  # disable a job instead of sending its request, as the service does with a job that it considers faulty
]
# These happen to a running job: at once, after `after_s`, or when it writes a line.
_RUNNING = frozenset(("preempt", "kill", "oom", "internal"))
# Once by default: a line that is written again after the restart would preempt the job again and again.
_ONCE = _RUNNING | {"late_list"}
_OF_LINES = frozenset(("late_line", "lost_line"))
_STORAGE_FIELDS = words("method path object at_byte bytes_per_s at")
_VERTEX_FIELDS = words("display_name region replica lists log writer after_s ends")
_SCHEDULER_FIELDS = words("job region")
_VERTEX_OPERATIONS = words(
    "customJobs.create customJobs.get customJobs.list customJobs.cancel customJobs.delete trainingPipelines.create"
    " trainingPipelines.get trainingPipelines.list trainingPipelines.cancel trainingPipelines.delete operations.get"
    " operations.wait"
    " entries.list metadata.get quotas.get projects.testIamPermissions serviceAccounts.testIamPermissions"
    " projects.get projects.list projects.getIamPolicy projects.setIamPolicy userinfo.get apis.get apis.enable"
    " serviceAccounts.get serviceAccounts.list serviceAccounts.create serviceAccounts.getIamPolicy"
    " serviceAccounts.setIamPolicy repositories.get repositories.create repositories.getIamPolicy"
    " repositories.setIamPolicy repositories.testIamPermissions dockerImages.list builds.list builds.account"
    " serviceAccounts.actAs iam.troubleshoot builds.create builds.get builds.cancel buildOperations.get tags.get"
    " dockerImages.get"
)
_SCHEDULER_OPERATIONS = words(
    "jobs.create jobs.get jobs.list jobs.patch jobs.pause jobs.resume jobs.run jobs.delete jobs.attempt locations.get"
    " locations.list"
)


_BUILD_ENDS = (
    "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED", "USER_BUILD_STEP", "PUSH_FAILED", "PUSH_IMAGE_NOT_FOUND",
    "PUSH_NOT_AUTHORIZED",
)  # fmt: skip
# The permissions that are not called like their operation.
_PERMISSIONS = {
    "entries.list": "logging.logEntries.list",
    "quotas.get": "serviceusage.quotas.get",
    **{f"serviceAccounts.{verb}": f"iam.serviceAccounts.{verb}" for verb in ("actAs", "get", "list", "create")},
    "projects.get": "resourcemanager.projects.get",
    "apis.get": "serviceusage.services.get",
    "apis.enable": "serviceusage.services.enable",
    **{f"repositories.{verb}": f"artifactregistry.repositories.{verb}" for verb in ("get", "create")},
    "dockerImages.list": "artifactregistry.dockerimages.list",
    "builds.list": "cloudbuild.builds.list",
    "builds.account": "cloudbuild.builds.get",
    "builds.create": "cloudbuild.builds.create",
    "builds.get": "cloudbuild.builds.get",
    "builds.cancel": "cloudbuild.builds.update",
    "buildOperations.get": "cloudbuild.builds.get",
    "tags.get": "artifactregistry.tags.get",
    "dockerImages.get": "artifactregistry.dockerimages.get",
    "jobs.patch": "cloudscheduler.jobs.update",
    "jobs.resume": "cloudscheduler.jobs.enable",
    "buckets.insert": "storage.buckets.create",
    "buckets.patch": "storage.buckets.update",
    "objects.download": "storage.objects.get",
    "objects.patch": "storage.objects.update",
    "xml.get": "storage.objects.get",
    "xml.delete": "storage.objects.delete",
    **dict.fromkeys(
        words(
            "objects.insert objects.compose objects.rewrite objects.copy objects.move uploads.start uploads.chunk"
            " uploads.status uploads.cancel xml.put xml.start xml.part xml.complete xml.abort"
        ),
        "storage.objects.create",
    ),
}


class _Api(NamedTuple):
    """The vocabulary of the rules for a service: its kinds, its operations, and the fields that not every service has."""

    kinds: tuple[str, ...]
    operations: AbstractSet[str]
    fields: AbstractSet[str]


_APIS = {
    "gcs": _Api(get_args(StorageKind), PARAMETERS.keys(), _STORAGE_FIELDS),
    "vertex": _Api(get_args(VertexKind), _VERTEX_OPERATIONS, _VERTEX_FIELDS),
    "scheduler": _Api(get_args(SchedulerKind), _SCHEDULER_OPERATIONS, _SCHEDULER_FIELDS),
}
# A rejection for too many requests, which clients distinguish by its text from a rejection for too many machines.
_SLOW_DOWN = (
    "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service 'aiplatform.googleapis.com'."
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One rule: a fault, and the requests, jobs or lines that it hits. A missing matcher matches all of them."""

    kind: StorageKind | VertexKind | SchedulerKind
    api: Literal["gcs", "vertex", "scheduler"] = "gcs"
    operation: str | None = None  # Of the request, such as "objects.insert" or "customJobs.create"
    nth: tuple[int, ...] | None = None  # Which of the matching requests, jobs, attempts or lines, counted from 1
    times: int | None = None  # The maximum number
    probability: float = 1.0  # For each match; drawn from `seed`, so that a second run draws the same
    seed: int = 0
    status: int = 503
    retry_after_s: int | None = None  # The Retry-After header of the answer
    from_s: float = 0.0  # It begins this long after the rules were set, by the clock of jobs
    seconds: float | None = None
    # Of Cloud Storage
    method: str = ""
    path: str = ""  # A regular expression that is searched in the decoded path and query
    # A regular expression that is searched in "bucket/name"; also for uploads without the object in their URL
    object: str = ""
    at_byte: int | None = None  # The position, see `StorageKind`
    bytes_per_s: int = 1024
    # Stall "before" the work, which is not done if the client disconnects meanwhile; or before it and do it "late" in
    # any case; or "after" it. Corrupt an upload: on the "wire", so that a declared checksum is rejected; "stored", so
    # that the answer shows another checksum; on the "disk", so that only a later read shows it.
    at: str = ""
    # Of Cloud Scheduler
    job: str = ""  # A regular expression that is searched in the id of the job
    # Of custom jobs and training pipelines
    display_name: str = ""  # A regular expression that is searched in the job's display name
    region: str = ""  # Of the job or the request, such as "us-central1"
    lists: int | None = None  # The number of lists that do not show a new job
    replica: str = "workerpool0-0"  # To which it happens
    # A regular expression; it happens to, or because of, a line in which it is found. A stockout begins with such a line.
    log: str | None = None
    writer: str = ""  # Which replica's lines are searched for `log`; "service" writes some, too
    after_s: float | None = None  # It happens this long after the job began to run
    ends: str = "USER_BUILD_STEP"  # The status of a failed build, or the type of its failure

    def error(self, kind: Callable[[int, str, dict[str, str]], E], operation: str) -> E:
        """Return the error that is the answer to a request for this operation."""
        if self.kind == "deny":
            return kind(403, _denial(self.api, operation), {})
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        google = f" {_SLOW_DOWN}" if (self.api, self.status) == ("vertex", 429) else ""
        return kind(self.status, f"Injected fault: {self.kind} {self.status}.{google}", headers)


def _denial(api: str, operation: str) -> str:
    """Return the sentence with which Google rejects a caller without the permission for an operation."""
    permission = _permission(api, operation)
    who = f"The caller does not have {permission} access to the Google Cloud Storage object. " if api == "gcs" else ""
    return f"{who}Permission '{permission}' denied on resource (or it may not exist)."


def _permission(api: str, operation: str) -> str:
    service = {"gcs": "storage", "vertex": "aiplatform", "scheduler": "cloudscheduler"}[api]
    return _PERMISSIONS.get(operation, f"{service}.{operation}")


class About(NamedTuple):
    """The subject of a request or an event: the display name or the id of a job, or "", a region, or "", and its service."""

    name: str = ""
    region: str = ""
    api: str = "vertex"


class _CountedFault:
    """A fault with its counts: it fires at most `times` times, and for a share of the matches."""

    def __init__(self, fault: Fault, index: int) -> None:
        self.fault = fault
        self._times = len(fault.nth or (1,)) if fault.times is None and fault.kind in _ONCE else fault.times
        self._random = random.Random(f"{fault.seed}/{index}")  # noqa: S311
        self._matched = self._fired = 0
        self.is_active = fault.kind != "stockout" or fault.log is None

    def fires(self) -> bool:
        """Count a match; return whether the fault applies to it."""
        self._matched += 1
        # Drawn for every match, so that a second run with the same seed draws the same.
        drawn = self._random.random() < self.fault.probability
        if not drawn or (self.fault.nth is not None and self._matched not in self.fault.nth):
            return False
        if self._times is not None and self._fired >= self._times:
            return False
        self._fired += 1
        return True

    def to_json(self) -> dict[str, Any]:
        own_fields = {name: value for name, value in vars(self.fault).items() if value != getattr(Fault, name, None)}
        return {**own_fields, "matched": self._matched, "fired": self._fired}


class FaultRules:
    """The rules in force, in their order. Safe to use from any thread. `now` is the clock of `Fault.from_s`."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._lock = threading.Lock()
        self._rules: list[_CountedFault] = []
        self._now, self._since = now, now()

    def replace(self, faults: Sequence[Fault]) -> None:
        with self._lock:
            # Of its service: a rule for another one does not change the draws of a seed.
            numbers = {api: itertools.count() for api in _APIS}
            self._rules = [_CountedFault(fault, next(numbers[fault.api])) for fault in faults]
            self._since = self._now()

    def for_storage(self, operation: str, method: str, path: str, name: str) -> list[Fault]:
        """Return the faults of a request of Cloud Storage about the object of that name."""

        def matches(fault: Fault) -> bool:
            same = fault.operation in (None, operation) and (fault.method or method).upper() == method
            return same and bool(re.search(fault.path, path) and re.search(fault.object, name))

        return self._choose("gcs", matches)

    def for_request(self, operation: str, about: About) -> list[Fault]:
        """Return the faults of a request of the other services, or with "jobs.attempt" of a request by a scheduled job."""
        common = get_args(CommonKind)
        return self._for_job(about, lambda fault: fault.kind in common and fault.operation in (None, operation))

    def for_job(self, kind: VertexKind | SchedulerKind, about: About) -> Fault | None:
        """Return the fault of a job, or of the next attempt of a scheduled one."""
        return next(iter(self._for_job(about, lambda fault: fault.kind == kind)), None)

    def for_running(self, about: About) -> list[Fault]:
        return self._for_job(about, lambda fault: fault.kind in _RUNNING and fault.log is None)

    def for_line(self, about: About, writer: str, line: str) -> list[Fault]:
        """Return the faults of a running job that a line of one of its replicas triggers."""
        with self._lock:
            for rule in self._rules:
                if not rule.is_active and _is_about(rule.fault, about):
                    rule.is_active = _finds(rule.fault, writer, line)
        return self._for_job(
            about, lambda fault: fault.kind in _RUNNING and fault.log is not None and _finds(fault, writer, line)
        )

    def for_entry(self, about: About, writer: str, line: str) -> list[Fault]:
        """Return the faults of a line on its way into the log."""
        return self._for_job(about, lambda fault: fault.kind in _OF_LINES and _finds(fault, writer, line))

    def denies(self, permission: str) -> bool:
        """Return whether a rule denies this permission, without counting a match."""
        with self._lock:
            rules = [rule.fault for rule in self._rules if rule.fault.kind == "deny"]
        return any(
            fault.operation is not None and _permission(fault.api, fault.operation) == permission for fault in rules
        )

    def contain(self, kind: VertexKind) -> bool:
        """Return whether there is such a rule, without counting a match."""
        with self._lock:
            return any(rule.fault.kind == kind for rule in self._rules)

    def has(self, fault: Fault) -> bool:
        """Return whether this very rule is still in force."""
        with self._lock:
            return any(rule.fault is fault for rule in self._rules)

    def to_json(self) -> list[dict[str, Any]]:
        with self._lock:
            return [rule.to_json() for rule in self._rules]

    def _for_job(self, about: About, matches: Callable[[Fault], bool]) -> list[Fault]:
        return self._choose(about.api, lambda fault: _is_about(fault, about) and matches(fault))

    def _choose(self, api: str, matches: Callable[[Fault], bool]) -> list[Fault]:
        with self._lock:
            passed_s = self._now() - self._since
            rules = [rule for rule in self._rules if rule.fault.api == api and passed_s >= rule.fault.from_s]
            return [rule.fault for rule in rules if rule.is_active and matches(rule.fault) and rule.fires()]


def _is_about(fault: Fault, about: About) -> bool:
    # A rule has the field of its service only.
    name = fault.job if fault.api == "scheduler" else fault.display_name
    return fault.region in ("", about.region) and re.search(name, about.name) is not None


def _finds(fault: Fault, writer: str, line: str) -> bool:
    return fault.writer in ("", writer) and re.search(fault.log or "", line) is not None


def parse_faults(script: bytes | str) -> list[Fault]:
    """Return the faults of a script; InputError with all its mistakes."""
    try:
        rules = json.loads(script)
    except (ValueError, RecursionError) as error:
        raise InputError(f"The faults are not JSON: {error}.") from None
    if not isinstance(rules, list):
        raise InputError(f"The faults are a JSON list of objects. Received: {type(rules).__name__}.")
    problems = [text for number, rule in enumerate(rules, 1) for text in _problems(f"Fault {number}", rule)]
    if problems:
        raise InputError(problems)
    return [_fault(rule) for rule in rules]


def _fault(rule: Mapping[str, Any]) -> Fault:
    values = {name: value for name, value in rule.items() if value is not None}
    if "nth" in values:
        values["nth"] = (values["nth"],) if isinstance(values["nth"], int) else tuple(values["nth"])
    if values["kind"] == "lose_session":
        values.setdefault("status", 404)
    return Fault(**values)


def _problems(title: str, rule: Any) -> list[str]:
    if not isinstance(rule, dict):
        return [f"{title} is not an object. Received: {rule!r}."]
    rule = {"api": "gcs", **rule}
    api = _APIS.get(rule["api"] if isinstance(rule["api"], str) else "", _APIS["gcs"])
    foreign = frozenset[str]().union(*(api.fields for api in _APIS.values())) - api.fields
    names = [field.name for field in fields(Fault) if field.name not in foreign]
    choices = {
        "api": list(_APIS),
        "kind": list(api.kinds),
        "operation": sorted(api.operations),
        "at": ["before", "late", "after", "wire", "stored", "disk"],
    }
    problems = [f"{title} has no field {name!r}. {nearest(name, names)}" for name in rule if name not in names]
    for name, (expected, is_valid) in _CHECKS.items():
        if name in names and name in rule and not is_valid(rule[name]):
            problems.append(f"{title}: {name} is {expected}. Received: {rule[name]!r}.")
    for name, allowed in choices.items():
        word = rule.get(name)
        if name in names and (word is not None or name in ("api", "kind")) and word not in allowed:
            hint = _api_hint(word) if name == "kind" else ""
            problems.append(f"{title}: unknown {name}. Received: {word!r}. {hint or nearest(str(word), allowed)}")
    return problems


def _api_hint(kind: object) -> str:
    """Return which service has a kind that the rule's service does not have, or ""."""
    owner = next((name for name, api in _APIS.items() if kind in api.kinds), "")
    return f'It is a kind of "api": "{owner}".' if owner else ""


def _is_whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_region(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[a-z]+-[a-z]+[0-9]+", value) is not None


def _is_build_end(value: Any) -> bool:
    return value in _BUILD_ENDS


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


def _is_nth(value: Any) -> bool:
    return value != [] and all(_is_whole(item, 1) for item in (value if isinstance(value, list) else [value]))


# For each field, a description of valid values and a test for them.
_CHECKS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "nth": ("a number from 1, or a list of them", _is_nth),
    "times": ("a number from 1", lambda value: _is_whole(value, 1)),
    "probability": ("a number from 0 to 1", lambda value: _is_number(value) and value <= 1),
    "seed": ("a whole number", lambda value: type(value) is int),
    "status": ("an HTTP status from 400 to 599", lambda value: _is_whole(value, 400) and value < 600),
    "retry_after_s": ("a number of seconds", _is_whole),
    "seconds": ("a number of seconds", _is_number),
    "from_s": ("a number of seconds", _is_number),
    "method": ("an HTTP method", _is_text),
    "path": ("a regular expression", _is_pattern),
    "object": ("a regular expression", _is_pattern),
    "at_byte": ("a number of bytes", _is_whole),
    "bytes_per_s": ("a number of bytes from 1", lambda value: _is_whole(value, 1)),
    "display_name": ("a regular expression", _is_pattern),
    "job": ("a regular expression", _is_pattern),
    "region": ("a region such as us-central1", _is_region),
    "lists": ("a number from 1", lambda value: _is_whole(value, 1)),
    "replica": ("a name such as workerpool1-0", _is_text),
    "log": ("a regular expression", _is_pattern),
    "writer": ("a name such as workerpool1-0, or service", _is_text),
    "after_s": ("a number of seconds", _is_number),
    "ends": ("a status of a build, or a type of failure, such as TIMEOUT or PUSH_NOT_AUTHORIZED", _is_build_end),
}
