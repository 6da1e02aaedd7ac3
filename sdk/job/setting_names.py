"""The name of each setting, the same as a keyword, a flag, a variable and in the project's file.

The most common settings have a bare name. Every other name begins with its group, which is also its table in the file:
`checkpoint_keep_last`, `--checkpoint-keep-last`, `PODLIFT_CHECKPOINT_KEEP_LAST`, `[tool.podlift.checkpoint] keep_last`.
"""

from __future__ import annotations

from . import option_classes

# The word of each part of a Job; for a backend's options it is the backend's name. Resources have bare names.
WORDS = {
    "resources": "", "checkpoints": "checkpoint", "retry": "retry", "limits": "limit", "code": "code",
    "gate": "gate",
}  # fmt: skip
_BARE = ("timeout", "max_steps", "max_cost_usd", "allow_secret")
# Two fields that one setting sets: "500steps,5m", "auto".
EVERY = ("every_steps", "every_s")


def setting_name(path: str) -> str:
    """Return the setting that sets a field, such as "limits.hang_s": "limit_hang"."""
    group, _, field = path.rpartition(".")
    name = "every" if field in EVERY else field.removesuffix("_s")
    word = "" if name in _BARE and group in WORDS else WORDS.get(group, group)
    return f"{word}_{name}" if word else name


def tables() -> tuple[str, ...]:
    """Return the tables of the project's file."""
    return tuple(word for word in (*WORDS.values(), *option_classes.complete()) if word)


def table_of(name: str) -> tuple[str, str]:
    """Return the table of the project's file in which a setting stands, "" for the top, and its key there."""
    table, _, key = name.partition("_")
    return (table, key) if table in tables() and key else ("", name)
