"""The third step of planning: everything that is read of this machine and of the cloud, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import backends, ids
from ..checkpoint.catalog import warm_start
from ..checks import Facts, Finding
from ..errors import InputError, Problems
from ..job.payload import InitialWeights
from ..job.secrets import Secret
from ..packaging.entry import LocatedEntry, locate
from ..storage import cache, data, emulator
from ..storage.paths import usable
from . import initial, references, secrets
from .roots import NO_BUCKET, check_root, configured_roots, in_bucket, in_cloud_storage, local_folder, resolved
from .validate import RunRequest

# Defaults for failed readings, so that the other steps can run.
_NO_FACTS = Facts(python="", executable="", tensorflow=None, keras=None, tf_keras=None, cpus=1, isolation=None)


@dataclass(frozen=True, kw_only=True)
class World:
    """The readings that planning decides from. After a mistake they hold a default, and no plan is made.

    Args:
        source: the program that the entry names; None if there is none.
        name: the name of the run.
        root: the root, as an absolute path or a URL.
        local: this machine's copy of a root in a bucket, "" for a root that is a folder.
        cache: podlift's cache folder; None without a home folder.
        emulator: the address of the emulator that stands in for Google Cloud, "" for none.
        facts: the answers of the backend.
        inputs: absolute paths and URLs of the data, by name.
        secrets: the secrets of the job with the versions that its tasks will read, by variable.
        warm_start: the checkpoint of another run to start from, as `STORE#COMMIT`; "" for none.
        initial: the weights of a registered model to start from.
        notes: findings about the inputs.
    """

    source: LocatedEntry | None
    name: str
    root: str
    local: str
    cache: Path | None
    emulator: str
    facts: Facts
    inputs: Mapping[str, str]
    secrets: Mapping[str, Secret]
    warm_start: str = ""
    initial: InitialWeights | None = None
    notes: tuple[Finding, ...] = ()


def look(request: RunRequest, environ: Mapping[str, str], problems: Problems) -> World:
    """Read everything that a plan depends on. Mistakes go to `problems`; after a mistake, `--online` sends no request."""
    root, local = _root(request, environ, problems)
    inputs, notes = _inputs(request, problems)
    warm = ""
    with problems.collect():
        if request.job.checkpoints.resume_from is not None and request.job.warm_start is None:
            warm = warm_start(request.job.checkpoints.resume_from, lambda run: references.url_of(run, root, environ))
    source, facts, pinned = None, _NO_FACTS, dict[str, Secret]()
    with problems.collect():
        if request.entry is None:
            raise InputError("No entry. Name a script, a notebook, package.module or package.module:function.")
        source = locate(request.entry, request.project)
    with problems.collect():
        backend = backends.load(request.backend)
        online = request.online and not problems.messages
        facts = backend.probe(request.job, request.target, root=root, online=online)
    with problems.collect():
        pinned = {} if request.capabilities.runs_here else secrets.pinned(request.job)
    name = request.name or ("run" if source is None else ids.default_name(source.title, source.home.name))
    return World(
        source=source,
        name=name,
        root=root,
        local=local,
        cache=_cache(environ),
        emulator=emulator.endpoint(environ) if in_cloud_storage(root) else "",
        facts=facts,
        inputs=inputs,
        secrets=pinned,
        warm_start=warm,
        initial=_initial(request, name, root, environ, problems),
        notes=tuple(notes),
    )


def _root(request: RunRequest, environ: Mapping[str, str], problems: Problems) -> tuple[str, str]:
    """Return the root, and the folder on this machine for a root in a bucket, "" for a root that is a folder."""
    root, local, capabilities = "/", "", request.capabilities
    with problems.collect():
        named = request.root
        root = NO_BUCKET if named == NO_BUCKET else resolved(named, shared=capabilities.needs_bucket)
        if in_bucket(root) and request.target.isolated:
            raise InputError(
                f"local_network='isolated' cannot reach checkpoints in a bucket. Received: root={root!r}. Next: name a folder."
            )
        local = local_folder(root, environ)
        if capabilities.supervised_here:
            with usable("The root", root):
                check_root(root)
    return root, local


def _inputs(request: RunRequest, problems: Problems) -> tuple[dict[str, str], list[Finding]]:
    inputs, notes = dict[str, str](), list[Finding]()
    with problems.collect(), usable("The current folder", "."):
        inputs, notes = data.resolve(request.job.inputs, Path.cwd()) if request.job.inputs else (inputs, notes)
        disk = request.capabilities.runs_here or request.capabilities.shares_folders
        notes += data.find_unreachable(inputs, disk=disk, network=not request.target.isolated)
    return inputs, notes


def _initial(
    request: RunRequest, name: str, root: str, environ: Mapping[str, str], problems: Problems
) -> InitialWeights | None:
    choice = request.job.warm_start
    if choice is None or root == NO_BUCKET or problems.messages:
        return None
    with problems.collect():
        return initial.chosen(choice, request.job.model or name, root, configured_roots(environ)[0])
    return None


def _cache(environ: Mapping[str, str]) -> Path | None:
    try:
        return cache.cache_folder(environ)
    except RuntimeError:
        return None  # there is no home directory: nothing is cached
