"""The names of the verbs: their modules, their groups in the help, and what people type instead. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

# In the order of the help; each verb is a function of that name in a module of this package.
GROUPS = {
    "Run a program": {"submit": "start", "plan": "start", "diff": "diff"},
    "Follow and control runs": {
        "runs": "look", "status": "look", "why": "look", "logs": "look", "wait": "look", "cancel": "look", "resume": "resume",
        "ui": "ui", "tensorboard": "tensorboard",
    },
    "Results": {"get": "results", "checkpoints": "results", "report": "report", "export": "export"},
    "Checks before a run": {"preflight": "preflight", "drill": "drill", "goodput": "drill", "accelerators": "accelerators"},
    "This machine": {"init": "init", "config": "settings", "doctor": "doctor", "prune": "prune", "emulator": "emulator"},
    "A cloud": {"image": "image"},
    "Schedules and models": {"schedule": "schedule", "models": "models"},
}  # fmt: skip
MODULES = {verb: module for verbs in GROUPS.values() for verb, module in verbs.items()}
# The verbs of a group, which follow its name.
IN_GROUP = {
    "schedule": (
        "create", "apply", "list", "show", "history", "check", "pause", "unpause", "run", "delete", "serve", "simulate",
    ),
    "models": ("list", "show", "add", "get", "promote", "rollback", "remove", "diff"),
}  # fmt: skip
_INSTEAD = {
    "runs": "ls ps list history jobs top",
    "submit": "run start launch train exec create new go",
    "plan": "dry-run dryrun preview show-plan",
    "status": "show info describe inspect state stat",
    "logs": "log tail output cat print",
    "why": "explain reason error errors",
    "wait": "watch follow attach join",
    "cancel": "stop kill abort terminate end interrupt",
    "resume": "restart retry continue rerun",
    "get": "download fetch pull copy cp outputs artifacts",
    "tensorboard": "tb board curves",
    "checkpoints": "ckpt ckpts snapshots saves",
    "ui": "dashboard web page browser view",
    "report": "html export-html share summary",
    "export": "mlflow wandb trackio upload sync log-to",
    "prune": "delete rm remove clean cleanup gc purge",
    "accelerators": "gpus tpus hardware machines prices devices",
    "config": "settings set options env",
    "init": "setup configure bootstrap",
    "doctor": "check health diagnose",
    "emulator": "emulate serve",
    "image": "build images docker container dockerfile",
    "diff": "compare",
    "schedule": "schedules cron crontab",
    "models": "model registry champion register promote rollback",
    "--help": "help man usage",
    "--version": "version",
}
_SLIPS = {word: verb for verb, words in _INSTEAD.items() for word in words.split()}


def unknown(word: str) -> str:
    """Return the message about a word that is not a verb, with the verb that was probably meant."""
    near = _SLIPS.get(word.lower()) or next(iter(get_close_matches(word.lower(), MODULES, n=1)), "")
    if not near and (close := get_close_matches(word.lower(), _SLIPS, n=1, cutoff=0.75)):
        near = _SLIPS[close[0]]
    advice = f"Did you mean: podlift {near}?" if near else f"Known: {', '.join(MODULES)}."
    return f"Unknown command: {word}. {advice}"


def unknown_in_group(words: Sequence[str]) -> str:
    """Return the message about a word that is not a verb of its group, "" if it is one, or none is there."""
    known = IN_GROUP.get(words[0], ()) if len(words) > 1 else ()
    if not known or words[1] in known or words[1].startswith("-"):
        return ""
    near = get_close_matches(words[1].lower(), known, n=1)
    advice = f"Did you mean: podlift {words[0]} {near[0]}?" if near else f"Known: {', '.join(known)}."
    return f"Unknown command: {words[0]} {words[1]}. {advice}"
