"""Checks of the fields of a Vertex: regions, project, bucket, account, image and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....checks import buckets
from ....checks.hardware import hardware
from ....hardware import Accelerator
from ....hardware import regions as known_regions
from ....job.findings import Finding, error, warning
from ....job.images import EMULATED, FAMILIES, KEEPER
from ....job.job import Job
from ..options import Vertex
from .hardware import supported

MAX_LABEL = 64
# podlift sets these on every job.
OWN_LABELS = ("podlift-run", "podlift-job", "podlift-project")
PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^\s*?\[\]{}\\]*)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
ACCOUNT = re.compile(r"[a-z0-9][a-z0-9-]*@[a-z0-9][a-z0-9.-]*\.gserviceaccount\.com")
# Google's prebuilt TensorFlow images; in the older registry, too.
RETIRED_IMAGE = re.compile(
    r"(?:(?:us|europe|asia)-docker\.pkg\.dev/vertex-ai|(?:(?:us|eu|asia)\.)?gcr\.io/cloud-aiplatform)"
    r"/training/tf-[a-z]+[.-]([^:@]*)"
)


def regions(job: Job, target: Vertex) -> Iterator[Finding]:
    """Regions that are malformed or do not exist. The list comes from Google's own SDK, which rejects others too."""
    requested = target.region_names
    mended = {"vertex.regions": list(dict.fromkeys(known_regions.meant(name) for name in requested))}
    bad = [name for name in requested if not known_regions.is_region(name)]
    if bad:
        message = f"Not a region: {', '.join(map(repr, bad))}. A job runs in a region, not in a zone or a continent"
        yield error(message, mended)
    unknown = [name for name in requested if name not in (*known_regions.KNOWN, *bad)]
    if unknown:
        yield error(f"Vertex AI has no region {', '.join(map(repr, unknown))}", mended)


def secrets(job: Job, target: Vertex) -> Iterator[Finding]:
    """Secrets without an account that could read them."""
    if job.secrets and target.service_account is None:
        names = ", ".join(job.secrets)
        yield error(
            f"{names}: a secret needs a service account of yours, because Vertex AI's default one gets no token for Secret "
            "Manager. Received: no vertex_service_account. Next: vertex_service_account=NAME@PROJECT.iam.gserviceaccount.com, "
            "with roles/secretmanager.secretAccessor on "
            f"{', '.join(sorted({secret.name.partition('/versions/')[0] for secret in job.secrets.values()}))}"
        )


def names(job: Job, target: Vertex) -> Iterator[Finding]:
    """Malformed names of the project and of the service account."""
    project, account = target.project, target.service_account
    if project is not None and not PROJECT.fullmatch(project):
        mended = re.sub(r"[^a-z0-9-]+", "-", project.rpartition("/")[2].strip().lower()).strip("-")[:30].rstrip("-")
        expected = "6 to 30 lowercase letters, digits and dashes, a letter first (its number works too)"
        change = {"vertex.project": mended} if PROJECT.fullmatch(mended) else None
        yield error(f"A project's id has {expected}. Received: {project!r}", change)
    if account is not None and not ACCOUNT.fullmatch(account):
        name = re.sub(r"[^a-z0-9-]+", "-", account.rpartition("/")[2].partition("@")[0].lower()).strip("-")
        person = "@" in account and "gserviceaccount" not in account
        usable = name and re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", project or "") and not person
        message = "A job runs as a service account, not as a person" if person else "This is not a service account"
        nearest = {"vertex.service_account": f"{name}@{project}.iam.gserviceaccount.com" if usable else None}
        yield error(f"{message}: NAME@PROJECT.iam.gserviceaccount.com. Received: {account!r}", nearest)


def bucket_and_root(target: Vertex, root: str) -> Iterator[Finding]:
    """A malformed bucket name, and a root outside the bucket."""
    bucket = (target.bucket or "").removeprefix("gs://").strip("/")
    if target.bucket and not _BUCKET.fullmatch(bucket):
        mended = re.sub(r"[^a-z0-9._-]+", "-", bucket.partition("/")[0].lower()).strip("-._")
        expected = "lowercase letters, digits, dashes, dots and underscores"
        change = {"vertex.bucket": mended} if _BUCKET.fullmatch(mended) else None
        yield error(f"A bucket's name has {expected}. Received: {target.bucket!r}", change)
        return
    # A plan without a bucket shows a placeholder.
    of_root = root.split("/")[2] if root.startswith("gs://") and not root.startswith("gs://<") else ""
    named = {of_root: root, bucket.partition("/")[0]: target.bucket}
    for name, location in named.items():
        if wrong := _impossible(name):
            yield error(f"The name of a bucket {wrong}. Received: {location!r}")
        elif name and buckets.name_problem(name):
            yield warning(f"No new bucket can be called so: its name {buckets.RESERVED}. Received: {location!r}")
    if any(map(_impossible, named)):
        return
    inside = {"root": f"gs://{bucket if '/' in bucket else f'{bucket}/podlift'}"}
    if root and not root.startswith("gs://"):
        message = f"Machines of Vertex AI can use buckets, but no folder of this machine. Received: root={root!r}"
        more = ". Next: root='gs://BUCKET/podlift', or vertex_bucket='BUCKET'"
        yield error(message, inside) if bucket else error(message + more)
    elif bucket and of_root and of_root != bucket.partition("/")[0]:
        yield error(f"Two buckets are given. Received: root={root!r}, vertex_bucket={target.bucket!r}", inside)


def _impossible(bucket: str) -> str:
    """Return the rule that keeps every bucket from having this name, "" for none; older ones may have reserved words."""
    problem = buckets.name_problem(bucket.partition("/")[0])
    return "" if problem == buckets.RESERVED or not bucket else problem


def image(job: Job, target: Vertex) -> Iterator[Finding]:
    """An image that is no longer available, or a malformed name."""
    for family, requested in target.images.items():
        # It stands in commands that are printed, too.
        if requested and ("://" in requested or not _IMAGE.fullmatch(requested)):
            mended = re.sub(r"[^A-Za-z0-9._/:@-]", "", requested.partition("://")[2] or requested).lstrip("-./:@")
            change = _with_image(target, family, mended if _IMAGE.fullmatch(mended) else None)
            expected = "letters, digits and ._-/:@, and no scheme"
            yield error(f"An image's name has {expected}. Received: {requested!r}", {"vertex.image": change})
        elif retired := RETIRED_IMAGE.match(requested):
            release = _release(retired[1].partition(".")[0], hardware(job))
            mine = f"{target.region_names[0]}-docker.pkg.dev/{target.project or 'PROJECT'}/images/tensorflow:{release}"
            message = (
                f"Google's image {requested!r} is retired, and no prebuilt image for TensorFlow remains. Any image with Python "
                f"and TensorFlow works; podlift image {_built(family, job)} --submit builds one of your own"
            )
            yield error(message, {"vertex.image": _with_image(target, family, mine)})


def _built(family: str, job: Job) -> str:
    """Return the family of hardware of the image that can stand for a setting's."""
    return {"": hardware(job).family, KEEPER: "cpu"}.get(family, family)


def _with_image(target: Vertex, family: str, image: str | None) -> object:
    """Return the images of a target with another one for a family, "" for all hardware."""
    others = {name: image for name, image in target.images.items() if name != family}
    return ({**others, **({family: image} if image else {})} or None) if family else image


def emulated_images(target: Vertex, emulator: str) -> Iterator[Finding]:
    """Images that an emulator has named: Vertex AI cannot pull them."""
    for family, name in target.images.items():
        if EMULATED in name and not emulator:
            # An image for keepers is one of those, too.
            built = family if family in FAMILIES else name.partition(EMULATED)[0].rpartition("/")[2]
            yield error(
                f"This image was built by an emulator, and no registry has it. Received: {name!r}. Next: podlift image {built} "
                "--submit, without PODLIFT_EMULATOR"
            )


def _release(version: str, row: Accelerator) -> str:
    """Return the supported release nearest to the release in an image's name ("2-15")."""
    low, high = supported(row)
    match = re.fullmatch(r"(\d+)-(\d+)", version)
    release = (int(match[1]), int(match[2])) if match else low
    return ".".join(map(str, min(max(release, low), high)))


def labels(job: Job, target: Vertex) -> Iterator[Finding]:
    requested = target.labels
    problems = [f"{key!r} is set by podlift" for key in requested if key in OWN_LABELS]
    problems += [f"the key {key!r} {why}" for key in requested if (why := _wrong(key, key=True))]
    problems += [f"the value {text!r} of {key!r} {why}" for key, text in requested.items() if (why := _wrong(text))]
    if problems:
        mended = {_label(key) or "label": _label(text) for key, text in requested.items() if key not in OWN_LABELS}
        message = "Labels are lowercase letters, digits, dashes and underscores, 64 characters at most"
        yield error(f"{message}: {'; '.join(problems)}", {"vertex.labels": mended})


def _wrong(text: str, *, key: bool = False) -> str:
    if key and not text:
        return "is empty"
    if len(text) > MAX_LABEL:
        return f"has {len(text)} characters"
    bad = "".join(dict.fromkeys(char for char in text if not _fits(char)))
    return f"holds {bad!r}" if bad else ""


def _fits(char: str) -> bool:
    # Letters of any alphabet, except capitals.
    return char in "-_" or (char.isalnum() and char == char.lower())


def _label(text: str) -> str:
    return "".join(char if _fits(char) else "-" for char in text.lower())[:MAX_LABEL]
