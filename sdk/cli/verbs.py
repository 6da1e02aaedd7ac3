"""The names of the verbs: their modules, their groups in the help, and what people type instead. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

# In the order of the help; each verb is a function of that name in a module of this package, `list` is `list_runs`.
GROUPS = {
    "Run a program": {"submit": "start", "plan": "start", "diff": "diff"},
    "Follow and control runs": {
        "list": "look", "status": "look", "why": "look", "logs": "look", "wait": "look", "cancel": "look", "resume": "resume",
        "ui": "ui", "tensorboard": "tensorboard",
    },
    "Results": {"get": "results", "checkpoints": "results", "export": "export"},
    "Checks before a run": {"preflight": "preflight", "drill": "drill", "goodput": "drill", "accelerators": "accelerators"},
    "This machine": {"init": "init", "config": "settings", "doctor": "doctor", "remove": "remove", "emulator": "emulator"},
    "A cloud": {"image": "image"},
    "Sweeps, schedules and models": {"sweep": "sweep", "schedule": "schedule", "models": "models"},
}  # fmt: skip
MODULES = {verb: module for verbs in GROUPS.values() for verb, module in verbs.items()}
# The verbs of a group, which follow its name.
IN_GROUP = {
    "schedule": (
        "create", "list", "status", "pause", "unpause", "run", "remove", "serve", "simulate",
    ),
    "sweep": ("create", "status", "best", "cancel", "resume"),
    "models": ("list", "status", "add", "promote", "evaluate", "remove"),
}  # fmt: skip
# What `podlift export` writes into a file.
REPORTS = ("html", "md")
_INSTEAD = {
    "list": "runs ls ps jobs top",
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
    "export html": "report html export-html share",
    "schedule status": "history slots",
    "schedule create --file": "apply",
    "export md": "summary markdown md",
    "export": "mlflow wandb trackio upload sync log-to",
    "remove": "prune delete rm clean cleanup gc purge",
    "accelerators": "gpus tpus hardware machines prices devices",
    "config": "settings set options env",
    "init": "setup configure bootstrap",
    "doctor": "check health diagnose",
    "emulator": "emulate serve",
    "image": "build images docker container dockerfile",
    "diff": "compare",
    "schedule": "schedules cron crontab",
    "sweep": "sweeps tune tuner search hpo hptune optimize",
    "models": "model registry champion register promote",
    "models promote MODEL --previous": "rollback revert",
    "--help": "man usage",
    "--version": "version",
}
# The same for words behind a group's name.
_INSTEAD_IN_GROUP = {
    "sweep": {
        "sweep create": "new add start run",
        "sweep status": "list ls show trials",
        "sweep resume": "continue wait watch attach",
        "sweep cancel": "stop kill",
    },
    "schedule": {
        "schedule create": "add new update",
        "schedule create --file": "apply",
        "schedule list --check": "check monitor",
        "schedule status": "show history slots describe",
        "schedule remove": "delete rm prune",
        "schedule unpause": "resume continue",
    },
    "models": {
        "models status": "show versions describe history",
        "models add": "register create",
        "models evaluate": "judge compare gate test",
        "models promote MODEL --previous": "rollback revert",
        "models remove": "delete rm prune",
        "get MODEL:VERSION": "get download",
        "diff MODEL:VERSION MODEL:VERSION": "diff compare",
    },
}


def _slips(instead: Mapping[str, str]) -> dict[str, str]:
    return {word: verb for verb, words in instead.items() for word in words.split()}


def unknown(words: Sequence[str]) -> str:
    """Return the message about words that name no verb, with the one that was probably meant; "" if they may name one."""
    group, word = ("", words[0]) if words[0] not in IN_GROUP else (words[0], words[1] if len(words) > 1 else "-")
    verbs = IN_GROUP.get(group, MODULES)
    if word.startswith("-") or word in verbs:
        return ""
    slips = _slips(_INSTEAD_IN_GROUP.get(group, _INSTEAD))
    near = slips.get(word.lower(), "")
    if not near and (close := get_close_matches(word.lower(), verbs, n=1)):
        near = f"{group} {close[0]}".lstrip()
    if not near and (close := get_close_matches(word.lower(), slips, n=1, cutoff=0.75)):
        near = slips[close[0]]
    advice = f"Did you mean: podlift {near}?" if near else f"Known: {', '.join(verbs)}."
    return f"Unknown command: {f'{group} {word}'.lstrip()}. {advice}"
