"""The options and arguments of the verbs, as types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import backends
from ..job import option_classes
from ..text import joined

# The fields that each backend with a setup proposes.
PROPOSED = {name: kind.proposed for name, kind in option_classes.every().items() if kind.proposed}


def option(name: str, metavar: str, about: str, **more: Any) -> Any:
    """Return an option with a value; its default is in `about`, if at all."""
    return typer.Option(name, *more.pop("also", ()), metavar=metavar, help=about, show_default=False, **more)


def argument(metavar: str, about: str) -> Any:
    return typer.Argument(metavar=metavar, help=about, show_default=False)


_ENTRY = "ENTRY [-- ARGS]"
_PROGRAM = "train.py, train.ipynb, a folder, package.module"
Words = Annotated[list[str] | None, argument(_ENTRY, f"{_PROGRAM} or package.module:function; then its arguments.")]
WordsOrPlan = Annotated[
    list[str] | None, argument(_ENTRY, f"{_PROGRAM}, package.module:function or a plan.json; then its arguments.")
]
Backend = Annotated[
    str | None, option("--backend", "NAME", f"Where the run executes: {joined(backends.names(), 'or')}.")
]
InitBackend = Annotated[str, argument("BACKEND", f"The backend to set up: {joined(list(PROPOSED), 'or')}.")]
InitDryRun = Annotated[bool, typer.Option("--dry-run", help="Print the file, and write nothing.")]
CheckedBackend = Annotated[
    str | None,
    option("--backend", "NAME", f"Check the account at its service instead, such as {next(iter(PROPOSED))}."),
]
Root = Annotated[str | None, option("--root", "URL", "Folder or gs://BUCKET/PREFIX for runs. Default: ~/.podlift.")]
Name = Annotated[str | None, option("--name", "NAME", "Label of the run; its id adds six characters.")]
Online = Annotated[
    bool | None,
    typer.Option(
        "--online/--no-online", help="Also check the bucket, the image and the quotas in the cloud.", show_default=False
    ),
]
Secrets = Annotated[
    list[str] | None,
    option("--secret", "K=NAME", "Variable with a secret: K=projects/PROJECT/secrets/SECRET. Repeatable."),
]
Env = Annotated[
    list[str] | None, option("--env", "K[=V]", "Environment variable of every task; K alone copies yours. Repeatable.")
]
Inputs = Annotated[
    list[str] | None, option("--input", "K=URL", "Data by name: a path or a URL. Repeatable.", also=("--inputs",))
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout at the end.")]
EachTask = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show also each task: its step, and the parts of its time.")
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Print the whole plan first, and on a terminal a line for each task.")
]
Changed = Annotated[bool, typer.Option("--changed", help="Show only settings that are not the default.")]
WholePlan = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show also the largest files, files left out, and variables not passed.")
]
WholeDigests = Annotated[bool, typer.Option("-v", "--verbose", help="Show the digests of one version in full.")]
Detach = Annotated[bool, typer.Option("--detach", help="Return as soon as the run has started.")]
PlanFile = Annotated[
    Path | None,
    option(
        "-o",
        "FILE",
        "Write the plan to FILE.json, for submit; or the objects of Kubernetes to FILE.yaml.",
        also=("--output",),
    ),
]
NoStart = Annotated[
    bool, typer.Option("--no-start", help="Store the run only; with -o, another tool starts it: kubectl apply -f FILE.")
]
ManifestFile = Annotated[
    Path | None, option("-o", "FILE", "With --no-start: file for the objects that start the run.", also=("--output",))
]
Compared = Annotated[str, argument("A", "A plan's file, a run, or MODEL:VERSION: a number, champion or latest.")]
OtherCompared = Annotated[str, argument("B", "Another plan's file, run or version of the model.")]

# Existing runs.
_A_RUN = "A run: its id, the beginning of its id, latest, or its directory."
Ref = Annotated[str, argument("REF", _A_RUN)]
ReadRef = Annotated[str, argument("REF", f"{_A_RUN} Default: latest.")]
RefOrVersion = Annotated[
    str,
    argument(
        "REF",
        "A run, as for status, or MODEL:VERSION: a number, champion or latest. MODEL: is the champion. Default: latest.",
    ),
]
UiRoots = Annotated[
    list[str] | None, argument("ROOT ...", "Folders or gs://BUCKET/PREFIX with runs. Default: all that are configured.")
]
UiPort = Annotated[
    int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port of the page; 0 for any free one.")
]
OpenBrowser = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
AllowActions = Annotated[
    bool,
    typer.Option("--allow-actions", help="Print a second URL: its page may also change runs, schedules and models."),
]
Refs = Annotated[list[str], argument("REF ...", "Runs, each as an id, the beginning of an id, latest, or a directory.")]
ExportTo = Annotated[str, argument("TO", "html, md, mlflow, wandb or trackio.")]
ExportOutput = Annotated[
    str | None,
    option(
        "-o", "FILE", "With html or md: file to write; - for stdout. Default: REF.html, or stdout for md.",
        also=("--output",),
    ),
]  # fmt: skip
ExportInto = Annotated[
    str | None,
    option(
        "--into",
        "NAME",
        "With a tracker: experiment or project there. Default: the one of its environment, else the name of the run.",
    ),
]
Limit = Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, help="Show at most this many.")]
States = Annotated[
    list[str] | None, option("--state", "STATE", "Show only runs in this state, such as running or failed. Repeatable.")
]
Label = Annotated[str | None, option("--name", "NAME", "Show only runs with this name; * matches anything.")]
Task = Annotated[str | None, option("--task", "TASK", "Show only this task, such as chief-0.")]
Attempt = Annotated[int | None, option("--attempt", "N", "Show only this attempt.", min=1)]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Keep printing until the run has ended.")]
Lines = Annotated[int | None, option("-n", "N", "Show only the last N lines.", also=("--lines",), min=0)]
Since = Annotated[str | None, option("--since", "DURATION", "Show only lines not older than this: 30s, 5m, 2h.")]
Timestamps = Annotated[bool, typer.Option("--timestamps", help="Print the time of each line before it.")]
Timeout = Annotated[str | None, option("--timeout", "DURATION", "Stop waiting after this time; the run continues.")]
Grace = Annotated[str | None, option("--grace", "DURATION", "Time between SIGTERM and SIGKILL; 0 for none.")]
Code = Annotated[
    str,
    typer.Option("--code", metavar="same|current", help="Run the code of the run, or the current code of its project."),
]
NewTimeout = Annotated[str | None, option("--timeout", "DURATION", "Another time limit; it begins again.")]
NewMaxCost = Annotated[
    float | None,
    option(
        "--max-cost-usd", "USD", "Another limit on the cost of all jobs of the run together; the earlier ones count."
    ),
]
Dest = Annotated[
    str | None,
    argument("[DEST]", "Folder to copy into. Default: one in the current folder, named after the run or version."),
]
Verify = Annotated[bool, typer.Option("--verify", help="Read every byte and compare it with its checksums.")]
Pin = Annotated[str | None, option("--pin", "STEP", "Keep the checkpoint of this step, or 'last'.")]
PinName = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Name of the pin; an existing pin of this name moves.")
]
Unpin = Annotated[str | None, option("--unpin", "NAME", "Remove the pin of this name.")]

# Sweeps.
SweepName = Annotated[str, argument("NAME", "Name of a sweep.")]
OptionalSweepName = Annotated[str | None, argument("[NAME]", "Name of a sweep. Default: list all of them.")]
SweepLabel = Annotated[
    str | None, option("--name", "NAME", "Name of the sweep. Default: of the program, and four digits.")
]
SpaceOption = Annotated[
    list[str] | None,
    option(
        "--space",
        "NAME=RANGE",
        "A parameter: lr=log:1e-5..1e-1, dropout=0.0..0.5, layers=1..8, units=32,64 or a FILE.toml with them. Repeatable.",
    ),
]
Metric = Annotated[str, option("--metric", "NAME", "The metric to optimize, such as val_accuracy.")]
Trials = Annotated[int, option("--trials", "N", "The number of trials.")]
Mode = Annotated[str, typer.Option("--mode", metavar="max|min", help="Whether more or less of the metric is better.")]
Parallel = Annotated[
    int | None,
    option("--parallel", "N", "Trials at the same time. Default: by the CPUs here, elsewhere up to four.", min=1),
]
Pruner = Annotated[
    str,
    typer.Option(
        "--pruner",
        metavar="asha|median|none",
        help="Stop bad trials early; asha continues the ones that turn out well, from their checkpoints.",
    ),
]
SamplerOption = Annotated[
    str, typer.Option("--sampler", metavar="tpe|random|grid", help="How parameters are proposed.")
]
SweepSeed = Annotated[int, typer.Option("--seed", metavar="N", help="The same seed proposes the same parameters.")]
SweepDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan with the price of the whole sweep, and write nothing.")
]
SweepDetach = Annotated[bool, typer.Option("--detach", help="Return as soon as the sweep has started.")]
Journal = Annotated[
    Path | None, option("--journal", "FILE", "Write Optuna's journal file, which optuna-dashboard opens.")
]

# Schedules.
NamedWords = Annotated[
    list[str] | None,
    argument(
        "NAME ENTRY [-- ARGS]", f"Name of the schedule; {_PROGRAM} or package.module:function; then its arguments."
    ),
]
ScheduleName = Annotated[str, argument("NAME", "Name of a schedule.")]
OptionalScheduleName = Annotated[str | None, argument("[NAME]", "Name of a schedule; without it, --cron is needed.")]
ScheduleNames = Annotated[list[str] | None, argument("[NAME ...]", "Names of schedules. Default: all of them.")]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="For a monitor: print only problems, and exit with 1 if a schedule is overdue, failing, changed at its "
        "service, or was paused because it failed, or if there is none.",
    ),
]
PastSlots = Annotated[
    int, typer.Option("-n", "--limit", metavar="N", min=1, help="Show at most this many of the last slots.")
]
SchedulesFile = Annotated[
    Path | None, option("--file", "FILE.toml", "Instead of NAME and ENTRY: a file with a table for each schedule.")
]
When = Annotated[
    list[str] | None,
    option(
        "--when",
        "CONDITION",
        "Skip a slot unless this holds: data_changed(INPUT), min_new_examples(INPUT, N), older_than(20h), or module:function "
        "of the packaged code. Repeatable.",
    ),
]
Notify = Annotated[
    list[str] | None,
    option(
        "--notify",
        "TARGET",
        "Receives failures, repeated skips and pauses: webhook:VARIABLE, with the URL in that environment variable of the "
        "server, or command:WORDS. Repeatable.",
    ),
]
NotifySkips = Annotated[
    int | None, option("--notify-skips", "N", "Notify after this many skips in a row; 0 for never. Default: 3.", min=0)
]
PauseAfter = Annotated[
    int | None,
    option("--pause-after-failures", "N", "Pause after this many failures in a row; 0 for never. Default: 3.", min=0),
]
MaxMonth = Annotated[
    float | None,
    typer.Option(
        "--max-cost-usd-per-month",
        metavar="USD",
        help="Skip a slot if its run and keeper could exceed this limit of a calendar month. Default: none.",
        show_default=False,
    ),
]
TriggerChoice = Annotated[
    str | None,
    option(
        "--trigger",
        "auto|serve",
        "The service that starts it: the backend's, such as Cloud Scheduler for vertex, or podlift schedule serve. Default: "
        "auto.",
    ),
]
Location = Annotated[
    str | None,
    option("--location", "REGION", "Where that service keeps it. Default: the region of the first location."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan, the request and the next five slots, and write nothing.")
]
Due = Annotated[
    bool, typer.Option("--due", help="Start the run of the slot that is due, at most once, and follow it to its end.")
]
DueSlot = Annotated[
    str | None,
    option("--slot", "DATE", "With --due: another slot, such as 2027-01-04T03:00. Default: the one that is due now."),
]
Within = Annotated[
    str | None, option("--within", "DURATION", "With --due: do nothing if the slot is older. Default: any age.")
]
DeliveryId = Annotated[
    str | None,
    option(
        "--id", "NAME", "With --due: name of this delivery, under which an interrupted one continues with its slot."
    ),
]
DueDetach = Annotated[
    bool,
    typer.Option(
        "--detach", help="With --due: let a keeper of the backend's service take the slot and follow the run."
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Start the due slots now, and exit: for cron, or a test.")]
Cron = Annotated[
    str | None, option("--cron", "CRON", "Five fields: minute, hour, day of the month, month, day of the week.")
]
TimeZone = Annotated[
    str | None, option("--time-zone", "ZONE", "Time zone of the cron expression, such as Europe/Berlin. Default: UTC.")
]
Overlap = Annotated[
    str | None,
    option(
        "--overlap",
        "skip|queue|replace|allow",
        "The slot's action while an earlier run continues: it is skipped, waits, replaces the run, or starts beside it. "
        "Default: skip.",
    ),
]
Missed = Annotated[
    str | None,
    option(
        "--missed",
        "skip|catch_up_last",
        "Slots at which nothing fired: skip all of them, or start the last one late. Default: skip.",
    ),
]
From = Annotated[
    str | None, option("--from", "DATE", "First instant, such as 2027-01-01 or 2027-01-01T02:30. Default: now.")
]
To = Annotated[
    str | None, option("--to", "DATE", "End, which is not included. Default: a year after the first instant.")
]
Durations = Annotated[
    list[str] | None,
    option("--duration", "DURATION", "How long a run takes. Repeatable: the runs take these durations in turn."),
]
Down = Annotated[
    list[str] | None, option("--down", "DATE..DATE", "Span of time without a server; its slots are missed. Repeatable.")
]

# Registered models.
ModelName = Annotated[str, argument("MODEL", "Name of a registered model.")]
_VERSION = "Number of a version, champion or latest"
Version = Annotated[str, argument("VERSION", f"{_VERSION}.")]
VersionOrAll = Annotated[str | None, argument("[VERSION]", f"{_VERSION}. Default: the whole model.")]
PromoteIfBetter = Annotated[
    bool, typer.Option("--promote", help="Store the evidence, and promote the version if the gate says so.")
]
PromotedVersion = Annotated[str | None, argument("[VERSION]", "Number of a version, or latest.")]
Previous = Annotated[
    bool,
    typer.Option(
        "--previous", help="Return to the champion before this one; a second time goes one step further back."
    ),
]
NameOfModel = Annotated[str | None, option("--model", "NAME", "Name of the model. Default: the name of the run.")]
PathInOutputs = Annotated[
    str,
    option(
        "--path",
        "PATH",
        "File or folder in the outputs of the run, such as work/model.keras. Default: the files in ctx.dirs.model.",
    ),
]
Ask = Annotated[
    str,
    option("--ask", "WHY", "Why it needs an approval: podlift models promote --as-compared. Default: it needs none."),
]
Expect = Annotated[
    int | None,
    option("--expect", "N", "Refuse unless version N is the champion, 0 for none. Default: no check.", min=0),
]
AsCompared = Annotated[
    bool,
    typer.Option(
        "--as-compared", help="Approve a version that awaits it, if the champion is the one of the comparison."
    ),
]
Note = Annotated[str, option("--note", "TEXT", "Why, for the history.")]
ForceRemoval = Annotated[bool, typer.Option("--force", help="Remove also a version that a rollback could return to.")]
VerifyFiles = Annotated[bool, typer.Option("--verify", help="Read all files, and exit with 3 if one is damaged.")]

# Checks before a run.
Kill = Annotated[
    list[str] | None,
    option(
        "--kill",
        "TASK@POINT:N[:WHAT]",
        "Task to kill at step, epoch, save or validation N: worker-0@step:50; random:3 for 3 random steps. With --backend "
        "vertex also its agent, machine or region: worker-0@step:50:machine. Repeatable.",
    ),
]
DrillBackend = Annotated[
    str | None,
    option("--backend", "NAME", "Where to train: local (default), or vertex on the emulator; never a real cloud."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Random seed of the training and of random kills.")]
For = Annotated[str, option("--for", "DURATION", "How long to train.")]
KillEvery = Annotated[str, option("--kill-every", "DURATION", "How often to kill a task.")]
AtLeast = Annotated[
    float, typer.Option("--at-least", metavar="PERCENT", help="How much of the time the program must have.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse dynamic shapes, which the compiler pads.")]
TimeLimit = Annotated[str, typer.Option("--time-limit", metavar="DURATION", help="Time limit of the preflight itself.")]
MemoryLimit = Annotated[
    float, typer.Option("--memory-limit-gb", metavar="GB", help="Memory limit of the preflight itself.", min=0.1)
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Check again, even if the same code was checked before.")]
FAMILIES = ("cpu", "gpu", "tpu")
Family = Annotated[str | None, option("--family", "|".join(FAMILIES), "Show only these devices.")]
Region = Annotated[str | None, option("--region", "REGION", "Show only the hardware of this region, at its prices.")]
Refresh = Annotated[bool, typer.Option("--refresh", help="Read prices from Google's catalog first, and keep them.")]
PriceProject = Annotated[
    str | None, option("--vertex-project", "ID", "Project with the APIs to use. Default: vertex_project.")
]

# Images.
ImageFamily = Annotated[
    str | None, argument("[cpu|gpu|tpu]", "Hardware that it is for. Default: the configured accelerator's.")
]
ImageSubmit = Annotated[bool, typer.Option("--submit", help="Start the build, wait for it, and record the image.")]
ImageWait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the build to end.", show_default=False)]
ImageRegion = Annotated[
    str | None, option("--region", "REGION", "Where it is built and stored. Default: the first region of jobs.")
]
BuildAccount = Annotated[
    str | None, option("--build-account", "EMAIL", "Service account of the build. Default: the one of Cloud Build.")
]
Dockerfile = Annotated[
    Path | None, option("--dockerfile", "FILE", "Another Dockerfile than podlift's, with stages of these names.")
]
ImageProject = Annotated[
    str | None, option("--vertex-project", "ID", "Project that builds and stores it. Default: vertex_project.")
]

# This machine.
OlderThan = Annotated[
    str, typer.Option("--older-than", metavar="AGE", help="Minimum age, with its unit: 12h, 30d, 2w.")
]
Keep = Annotated[int, typer.Option("--keep", metavar="N", min=0, help="Always keep the N newest runs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Remove the listed items; without it nothing is removed.")]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port on loopback; 0 for a free one.")]
Data = Annotated[Path, option("--data", "DIR", "Folder for all data.")]
Buckets = Annotated[
    list[str] | None, option("--bucket", "NAME[@REGION]", "Create this bucket if it does not exist. Repeatable.")
]
Faults = Annotated[Path | None, option("--faults", "FILE", "Faults to inject from the start, as JSON.")]
Capacity = Annotated[
    int, typer.Option("--capacity", metavar="N", min=1, help="Replicas that run at a time; other jobs stay queued.")
]
Frozen = Annotated[
    bool, typer.Option("--frozen-clock", help="Advance the clock only by POST /_clock {'advance_s': N}.")
]
