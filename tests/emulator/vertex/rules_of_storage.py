"""Rules of Cloud Storage.

Sources: storage/docs/buckets, lifecycle, soft-delete, public-access-prevention, metadata, composite-objects,
resumable-uploads, request-preconditions and objects of the JSON API (read 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import requests
from rule import BUCKETS, REGION, Rule, bucket
from served import Served

BUCKET = bucket("mine")
UPLOADS = "/upload/storage/v1/b/mine/o"
UNIT = 256 << 10


def put(name: str, data: str = "x", **fields: str) -> tuple[str, str, Any]:
    """An object with a body of JSON, which is as good as any."""
    query = "".join(f"&{field}={text}" for field, text in fields.items())
    return ("POST", f"{UPLOADS}?uploadType=media&name={quote(name, safe='')}{query}", data)


def made(says: str, called: str = "mine", code: int = 200, part: str = "", **fields: Any) -> Rule:
    body = {"name": called, "location": REGION, **fields}
    return Rule(says=says, path=BUCKETS, body=body, code=code, part=part, name="invalid" if code == 400 else "")


def refused(says: str, part: str, **fields: Any) -> Rule:
    return made(says, code=400, part=part, **fields)


def names() -> Iterator[Rule]:
    for name in ("abc", "my-bucket_1", "1bucket", "www.example.com", "go-ogle", f"{'a' * 63}.{'b' * 63}"):
        yield made(f"{name[:20]} ({len(name)}) is a name of a bucket", name)
    for name in (
        "", "ab", "a" * 64, f"{'a' * 64}.b", f"{'a.' * 111}a", "My-Bucket", "my/bucket", "-bucket", "bucket_", "a..b",
        "bücket", "192.168.5.4", "goog-mine", "my-google-data", "my-g00gle",
    ):  # fmt: skip
        yield refused(f"{name[:20]!r} ({len(name)}) is no name of a bucket", "Invalid bucket name", called=name)


def settings() -> Iterator[Rule]:
    for location in ("us-central1", "US", "NAM4", "EUR4"):
        yield made(f"a bucket may be in {location}", location=location)
    for location in ("us-central1-a", "global", 7):
        yield refused(f"no bucket is in {location}", "location constraint is not valid", location=location)
    yield refused("us-central is no location", "Did you mean 'US-CENTRAL1'?", location="us-central")
    pair = {"dataLocations": ["US-CENTRAL1", "us-east1"]}
    yield made("a bucket may be in two regions", part="dual-region", location="US", customPlacementConfig=pair)
    three = {"dataLocations": ["US-CENTRAL1", "US-EAST1", "US-WEST1"]}
    yield refused("a bucket is not in three regions", "dataLocations", location="US", customPlacementConfig=three)
    near = {"dataLocations": ["us-east1", "us-wset1"]}
    yield refused("a region of two is known", "Did you mean 'US-WEST1'?", location="US", customPlacementConfig=near)
    yield refused("a bucket has no class NEERLINE", "Did you mean 'NEARLINE'?", storageClass="NEERLINE")
    for says, labels in (
        ("labels of 63 characters", {"k" * 63: "v" * 63, "empty": "", "größe_1": ""}),
        ("64 labels of a bucket", {f"k{number}": "" for number in range(64)}),
    ):
        yield made(says, labels=labels)
    for says, labels in (
        ("no 65 labels of a bucket", {f"k{number}": "" for number in range(65)}),
        ("a bucket's label has no capitals", {"K": "v"}),
        ("a bucket's label does not begin with a digit", {"1k": "v"}),
        ("a bucket's label has no value with capitals", {"k": "V"}),
        ("no label of a bucket with 64 characters", {"k" * 64: ""}),
        ("no value of a label with 64 characters", {"k": "v" * 64}),
        ("a value of a label is text", {"k": 1}),
    ):
        yield refused(says, "label", labels=labels)
    for seconds in (0, "604800", "7776000"):
        yield made(f"soft delete of {seconds!r} s", softDeletePolicy={"retentionDurationSeconds": seconds})
    for seconds in ("604799", "7776001", "-1", "week"):
        part = "retentionDurationSeconds of a bucket is 0, or from 604800 to 7776000"
        yield refused(f"no soft delete of {seconds} s", part, softDeletePolicy={"retentionDurationSeconds": seconds})
    yield made("access is enforced", iamConfiguration={"publicAccessPrevention": "enforced"})
    for word in ("ENFORCED", True):
        access = {"publicAccessPrevention": word}
        yield refused(f"publicAccessPrevention is not {word}", "publicAccessPrevention", iamConfiguration=access)
    yield made("uniform access", iamConfiguration={"uniformBucketLevelAccess": {"enabled": False}})
    misspelt = {"uniformBucketLevelAcess": {}}
    yield refused("uniform access is spelt right", "'uniformBucketLevelAccess'", iamConfiguration=misspelt)
    yield refused("versioning is a switch", "versioning.enabled", versioning={"enabled": "on"})
    yield refused("a bucket has no field colour", "Unknown name 'colour'", colour="red")


def lifecycle() -> Iterator[Rule]:
    delete, old = {"type": "Delete"}, {"age": 30}
    nearline = {"type": "SetStorageClass", "storageClass": "NEARLINE"}
    good: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("delete by names", delete, {"age": 0, "matchesPrefix": ["tmp/"], "matchesSuffix": [".part"]}),
        ("set a class", nearline, old),
        ("a null is no condition and no class", {**delete, "storageClass": None}, {**old, "isLive": None}),
    )
    for says, action, condition in good:
        yield made(f"lifecycle: {says}", lifecycle={"rule": [{"action": action, "condition": condition}]})
    for says, action, condition, part in (
        ("an action", None, old, "needs an action"),
        ("a known action", {"type": "Remove"}, old, "needs an action with a type"),
        ("a known field of an action", {**delete, "colour": 1}, old, "Unknown name 'colour'"),
        ("a condition", delete, None, "at least one condition"),
        ("a known condition", delete, {"olderThan": 3}, "Unknown name 'olderThan'"),
    ):
        given = {"action": action, "condition": condition}
        rule = {name: value for name, value in given.items() if value is not None}
        yield refused(f"lifecycle: a rule has {says}", part, lifecycle={"rule": [rule]})
    yield refused("lifecycle: rules are objects", "a list of objects", lifecycle={"rule": ["Delete"]})


def buckets() -> Iterator[Rule]:
    path, hour = "/storage/v1/b/mine", {"softDeletePolicy": {"retentionDurationSeconds": "3600"}}
    account = "serviceAccount:a@acme.iam.gserviceaccount.com"
    policy = {"bindings": [{"role": "roles/storage.admin", "members": [account]}]}
    absent = ("POST", "/_project", {"absent": ["//iam.googleapis.com/projects/-/serviceAccounts/" + account[15:]]})
    here, misspelt = [BUCKET], f"{path}?ifMetagenerationmatch=1"
    for says, method, where, body, code, words, before in (
        ("a bucket exists once", "POST", BUCKETS, {"name": "mine"}, 409, "conflict", here),
        ("a bucket that is not there", "GET", path, None, 404, "notFound", []),
        ("a bucket with objects stays", "DELETE", path, None, 409, "conflict", [BUCKET, put("x")]),
        ("an empty bucket goes", "DELETE", path, None, 204, "", here),
        ("a bucket is not moved by PATCH", "PATCH", path, {"location": "EU"}, 400, "cannot be changed", here),
        ("a metageneration matches", "PATCH", f"{path}?ifMetagenerationMatch=7", {}, 412, "conditionNotMet", here),
        ("a patch follows the rules too", "PATCH", path, hour, 400, "7 to 90 days", here),
        ("a precondition is spelt right", "GET", misspelt, None, 400, "has no parameter", here),
        ("a policy names accounts that exist", "PUT", f"{path}/iam", policy, 400, "does not exist", [BUCKET, absent]),
    ):
        yield Rule(says=says, method=method, path=where, body=body, code=code, part=words, before=before)


def objects() -> Iterator[Rule]:
    here, path = [BUCKET], "/storage/v1/b/mine/o"

    def upload(says: str, called: str, code: int = 200, **more: Any) -> Rule:
        given = {"before": here, "name": "invalid" if code == 400 else "", **more}
        target = f"{UPLOADS}?uploadType=media&name={quote(called, safe='')}"
        return Rule(says=says, path=target, data=b"x", code=code, **given)

    yield upload("a name has 1024 bytes", "n" * 1024)
    for says, name in (
        ("a name has no 1025 bytes", "n" * 1025),
        ("a name's letters count in UTF-8", "ü" * 513),
        ("two dots are no name", ".."),
        ("a name has no line feed", "a\nb"),
        ("a challenge is no object", ".well-known/acme-challenge/x"),
    ):
        yield upload(says, name, 400, part="Invalid object name")
    yield upload("an upload has a name", "", 400, part="Required")
    untyped, there = f"{UPLOADS}?name=x", [BUCKET, put("x")]
    yield Rule(says="an upload has a type", path=untyped, data=b"x", code=400, part="uploadType", before=here)
    over, one = f"{UPLOADS}?uploadType=media&name=x", f"{path}/x?"
    for method, where, query, code, name in (
        ("POST", over, "&ifGenerationMatch=-1", 400, "invalid"),
        ("GET", one, "", 200, ""),
        ("GET", one, "generation=1", 404, "notFound"),
        ("GET", one, "ifGenerationMatch=1", 412, "conditionNotMet"),
        ("GET", one, "ifMetagenerationNotMatch=1", 304, ""),
        ("GET", one, "ifgenerationmatch=1", 400, "invalid"),
        ("DELETE", one, "ifGenerationMatch=1", 412, "conditionNotMet"),
    ):
        says, data = f"{method} of an object with {query or 'nothing'}", b"y" if method == "POST" else None
        yield Rule(says=says, method=method, path=where + query, data=data, code=code, name=name, before=there)
    for method in ("GET", "DELETE"):
        says = f"a {method} of no object"
        yield Rule(says=says, method=method, path=f"{path}/y", code=404, name="notFound", before=here)
    for text, code in (("bytes=0-0", 206), ("bytes=9-", 416), ("bytes=-1", 206), ("", 200)):
        headers, media = {"Range": text} if text else {}, f"{one}alt=media"
        yield Rule(says=f"a download of {text!r}", method="GET", path=media, headers=headers, code=code, before=there)
    for says, digest, code in (("right", "ndTkYSaMgDT1yFZOFVxnpg==", 200), ("wrong", "A" * 22 + "==", 400)):
        hashes = {"x-goog-hash": f"md5={digest}"}
        yield Rule(says=f"an upload with the {says} MD5", path=over, data=b"x", headers=hashes, code=code, before=here)
    yield upload("an upload needs its bucket", "x", 404, before=[], name="notFound")
    yield Rule(says="a list with maxResults=1", method="GET", path=f"{path}?maxResults=1", part='"x"', before=there)
    for query in ("maxResults=-1", "pageToken=x", "prfix=a"):
        yield Rule(says=f"no list with {query}", method="GET", path=f"{path}?{query}", code=400, before=there)


def metadata() -> Iterator[Rule]:
    here, path = [BUCKET, put("x")], "/storage/v1/b/mine/o/x"

    def patch(says: str, body: Any, part: str = "", before: Any = (), method: str = "PATCH", code: int = 400) -> Rule:
        name, before = "invalid" if code == 400 else "", [*here, *before]
        return Rule(says=says, method=method, path=path, body=body, code=code, part=part, name=name, before=before)

    yield patch("metadata of 8 KiB", {"metadata": {"k" * 192: "v" * 8000}}, code=200)
    over = "exceed the maximum allowed metadata size"
    yield patch("no metadata of more than 8 KiB", {"metadata": {"k" * 192: "v" * 8001}}, over)
    half = ("PATCH", path, {"metadata": {"a": "v" * 6000}})
    replaced = {"metadata": {"a": None, "b": "v" * 6000}}
    yield patch("metadata of two patches count together", {"metadata": {"b": "v" * 6000}}, over, [half])
    yield patch("metadata that are replaced do not count", replaced, before=[half], code=200)
    yield patch("a value of metadata is a string", {"metadata": {"k": 1}}, "map names to strings")
    yield patch("a customTime is not emulated", {"customTime": "2026-11-28T08:00:00Z"}, "customTime", code=405)
    update = {"contentType": "x/y"}
    cold = ("POST", f"{path}/rewriteTo/b/mine/o/x", {"storageClass": "COLDLINE"})
    yield patch("an update keeps the class", update, "COLDLINE", [cold], method="PUT", code=200)


def compose() -> Iterator[Rule]:
    path = "/storage/v1/b/mine/o/all/compose"

    def composed(says: str, sources: list[dict[str, Any]], code: int = 200, before: Any = (), **more: Any) -> Rule:
        body = {"sourceObjects": sources, **more.pop("fields", {})}
        return Rule(says=says, path=path, body=body, code=code, before=[BUCKET, put("x"), *before], **more)

    one = [{"name": "x"}]
    yield composed("a compose needs its sources", [{"name": "y"}], 404, name="notFound")
    stale = [{"name": "x", "objectPreconditions": {"ifGenerationMatch": "1"}}]
    yield composed("a source of a compose has its generation", stale, 412, name="conditionNotMet")
    yield composed("a compose of 32 objects", one * 32)
    yield composed("no compose of 33 objects", one * 33, 400, part="from 1 to 32", name="invalid")
    yield composed("no compose of nothing", [], 400, part="from 1 to 32", name="invalid")
    colder = [("PATCH", "/storage/v1/b/mine", {"storageClass": "NEARLINE"}), put("cold")]
    mixed = [{"name": "x"}, {"name": "cold"}]
    warmer = ("PATCH", "/storage/v1/b/mine", {"storageClass": "STANDARD"})
    yield composed("a compose keeps the class", [{"name": "cold"}], before=[*colder, warmer], part="NEARLINE")
    yield composed("no compose across classes", mixed, 400, before=colder, part="NEARLINE, STANDARD", name="invalid")
    other = {"destination": {"storageClass": "COLDLINE"}}
    yield composed("no compose into another class", one, 400, fields=other, part="COLDLINE, STANDARD", name="invalid")


def resumable() -> Iterator[Rule]:
    def session(served: Served) -> str:
        begun = requests.post(f"{served.url}{UPLOADS}?uploadType=resumable&name=big", json={}, timeout=60)
        return begun.headers["Location"].removeprefix(served.url)

    for says, size, content_range, code, part in (
        ("a chunk of a unit and five bytes", UNIT + 5, f"bytes 0-{UNIT + 4}/*", 308, ""),
        ("a chunk of five bytes that is not the last", 5, "bytes 0-4/*", 400, "equal or greater than 262144"),
        ("a last chunk of five bytes", 5, "bytes 0-4/5", 200, '"size":"5"'),
        ("a chunk begins where the upload is", UNIT, f"bytes {UNIT}-{2 * UNIT - 1}/*", 400, "invalid"),
        ("a Content-Range can be parsed", 5, "bytes 4-0/5", 400, "Failed to parse"),
        ("a chunk of a unit", UNIT, f"bytes 0-{UNIT - 1}/*", 308, ""),
        ("a Content-Range is within the total", 5, "bytes 0-4/3", 400, "Failed to parse"),
        ("a state is asked without bytes", 0, "bytes */*", 308, ""),
    ):
        sent: dict[str, Any] = {"data": b"x" * size, "headers": {"Content-Range": content_range}}
        yield Rule(says=says, method="PUT", path="", code=code, part=part, before=[BUCKET], found=session, **sent)
    lost = f"{UPLOADS}?uploadType=resumable&upload_id=none"
    yield Rule(says="a lost session", method="PUT", path=lost, data=b"x", code=404, name="notFound", before=[BUCKET])
    cancelled = "a cancelled upload ends with 499"
    yield Rule(says=cancelled, method="DELETE", path="", code=499, before=[BUCKET], found=session)


RULES = [*names(), *settings(), *lifecycle(), *buckets(), *objects(), *metadata(), *compose(), *resumable()]
