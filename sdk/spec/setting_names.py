"""The name of each setting, the same as a keyword, a flag, a variable and in the project's file; and its earlier name.

The settings that everybody uses have a bare name. Every other one begins with its group, which is also its table in the file:
`checkpoint_keep_last`, `--checkpoint-keep-last`, `PODLIFT_CHECKPOINT_KEEP_LAST`, `[tool.podlift.checkpoint] keep_last`.
"""

from __future__ import annotations

# The word of each part of a Job, and of each backend's value. Resources have bare names.
WORDS = {
    "resources": "", "checkpoints": "checkpoint", "retry": "retry", "limits": "limit", "code": "code",
    "gate": "gate", "local": "local", "vertex": "vertex", "ray": "ray",
}  # fmt: skip
TABLES = tuple(word for word in WORDS.values() if word)
_BARE = ("timeout", "max_steps", "max_cost_usd", "allow_secret")
# Two fields that one setting sets: "500steps,5m", "auto".
EVERY = ("every_steps", "every_s")

# Names before the groups, and what they are now.
RENAMED = {
    "cluster": "local_cluster", "network": "local_network", "start": "local_start",
    "provisioning": "vertex_provisioning", "machine": "vertex_machine", "disk_gb": "vertex_disk_gb",
    "project": "code_project", "include": "code_include", "exclude": "code_exclude",
    "requirements": "code_requirements", "isolated": "code_isolated", "keras": "code_keras", "writes": "code_writes",
    "timeout_s": "timeout", "hang_s": "limit_hang", "grace_s": "limit_grace", "exit_wait_s": "limit_exit_wait",
    "allow_unknown_price": "limit_allow_unknown_price",
    "user": "retry_user_errors", "infrastructure": "retry_infrastructure", "preemption": "retry_preemptions",
    "every_steps": "checkpoint_every", "every_s": "checkpoint_every", "keep_last": "checkpoint_keep_last",
    "best": "checkpoint_best", "on_busy": "checkpoint_on_busy", "auto": "checkpoint_auto",
    "resume_from": "checkpoint_resume_from",
}  # fmt: skip
# Fields that a class had, and where they are now.
RENAMED_FIELDS = {
    ("Resources", "cluster"): "Local(cluster=...)", ("Resources", "network"): "Local(network=...)",
    ("Code", "start"): "Local(start=...)", ("Resources", "provisioning"): "Vertex(provisioning=...)",
    ("Resources", "machine"): "Vertex(machine=...)", ("Resources", "disk_gb"): "Vertex(disk_gb=...)",
    ("Retry", "user"): "Retry(user_errors=...)", ("Retry", "preemption"): "Retry(preemptions=...)",
}  # fmt: skip


def setting_name(path: str) -> str:
    """Return the setting that sets a field, such as "limits.hang_s": "limit_hang"."""
    group, _, field = path.rpartition(".")
    name = "every" if field in EVERY else field.removesuffix("_s")
    word = "" if name in _BARE else WORDS.get(group, "")
    return f"{word}_{name}" if word else name


def table_of(name: str) -> tuple[str, str]:
    """Return the table of the project's file in which a setting stands, "" for the top, and its key there."""
    table, _, key = name.partition("_")
    return (table, key) if table in TABLES and key else ("", name)


def renamed(old: str, *, written: str = "{}", new: str = "") -> str:
    """Return the sentence for an earlier name; `written` is how a name is written where it was found: "PODLIFT_{}"."""
    said = f"{written.format(old)} is now {new or written.format(RENAMED[old])}"
    # The number alone would mean seconds.
    return f"{said}, with the unit: 500steps." if old == "every_steps" else f"{said}."
