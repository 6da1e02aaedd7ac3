"""The versioned JSON that a task reads to know what to run: all that the two halves of podlift tell each other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What a task has to do.

    Args:
        run_id: the run.
        run_url: its directory.
        attempt: which try of the whole gang this is, from 1.
        kind: "script", "module" or "function".
        target: the script's path in the bundle, or the module.
        function: its name, for a function.
        argv: words behind the script's or module's name.
        kwargs: keyword arguments of the function.
        bundle: path of the archive.
        digest: its sha256.
        roots: folders of the bundle that go first on sys.path, "" for the top.
        tasks: all tasks' names, the first decides.
        writes: "chief" or "all": whose Keras files reach the path that they name.
        exit_wait_s: how long the first task waits for the others before it leaves.
        cwd: the folder of the bundle in which the program starts, "" for the top.
        inputs: where data lies, by name.
        max_steps: training steps after which `fit` ends; None for no limit.
        outside: folders that hold the project's own modules where it was submitted: none may load from there.
        checkpoints: the job's policy; {} for a run of an earlier podlift, which saves nothing by itself.
        warm_start: the checkpoint to start with, as `STORE#COMMIT`; "" for none.
        grace_s: what a task has to end when it was asked to, in seconds.
        drill: "kills" of tasks on purpose and the "seed" of everything random; {} where nobody drills.
        store: where checkpoints are kept; "" for the run's own directory.
        board: the run's directory in a bucket, where the tasks have no folder in common; "" where they have.
        generation: how often the run was resumed: wishes of clients are for one generation; only beside a board.
        vendor: a folder of packages that are found behind all others; "" for none.
        tpu: the row of the hardware table that the task runs on, if it is a TPU; "" for none.
        tpu_stand_in: True where CPUs stand for it.
        own_names: those of podlift's import names that the project has modules of: its own come first.
    """

    run_id: str
    run_url: str
    attempt: int
    kind: str
    target: str
    function: str
    argv: list[str]
    kwargs: dict[str, Any]
    bundle: str
    digest: str
    roots: list[str]
    tasks: list[str]
    writes: str
    exit_wait_s: float
    cwd: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    max_steps: int | None = None
    outside: list[str] = field(default_factory=list)
    checkpoints: dict[str, Any] = field(default_factory=dict)
    warm_start: str = ""
    grace_s: float = 5.0
    drill: dict[str, Any] = field(default_factory=dict)
    store: str = ""
    board: str = ""
    generation: int = 0
    vendor: str = ""
    tpu: str = ""
    tpu_stand_in: bool = False
    own_names: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the payload as JSON text."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Payload:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it was written by a later podlift, or is no payload.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise ValueError(f"This is not a payload of version {VERSION}. Received: {str(text)[:80]!r}")
        known = {item.name for item in fields(Payload)}
        return Payload(**{key: value for key, value in data.items() if key in known})
