"""Rules of Cloud Storage.

Sources: storage/docs/buckets, lifecycle, soft-delete, public-access-prevention, metadata, composite-objects,
resumable-uploads, request-preconditions and objects of the JSON API (read 2026-11).
"""

from __future__ import annotations

import base64
import hashlib
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


def names() -> Iterator[Rule]:
    good = (
        "abc",
        "a" * 63,
        "my-bucket_1",
        "1bucket",
        "a.b.c",
        "www.example.com",
        "go-ogle",
        "agoog",
        f"{'a' * 63}.{'b' * 63}",
    )
    for name in good:
        yield made(f"{name[:20]} ({len(name)}) is a name of a bucket", name)
    bad = (
        *(
            "",
            "ab",
            "a" * 64,
            f"{'a' * 64}.b",
            f"{'a.' * 111}a",
            "My-Bucket",
            "my bucket",
            "my/bucket",
            "-bucket",
            "bucket-",
        ),
        *(
            ".bucket",
            "bucket.",
            "_bucket",
            "bucket_",
            "a..b",
            "bücket",
            "192.168.5.4",
            "1.2.3.4",
            "goog-mine",
            "google",
        ),
        *("my-google-data", "my-g00gle", "g0ogle-mine", "mygoogie1-google", "goog1e"),
    )
    for name in bad:
        yield made(f"{name[:20]!r} ({len(name)}) is no name of a bucket", name, 400, "Invalid bucket name")


def settings() -> Iterator[Rule]:
    for location in ("us-central1", "US", "EU", "ASIA", "NAM4", "EUR4", "europe-west4"):
        yield made(f"a bucket may be in {location}", location=location)
    for location in ("us-central", "us-central1-a", "mars-west1", "global", 7):
        yield made(f"no bucket is in {location}", code=400, part="location constraint is not valid", location=location)
    pair = {"dataLocations": ["US-CENTRAL1", "US-EAST1"]}
    yield made("a bucket may be in two regions", location="US", customPlacementConfig=pair)
    three = {"dataLocations": ["US-CENTRAL1", "US-EAST1", "US-WEST1"]}
    yield made(
        "a bucket is not in three regions", code=400, part="dataLocations", location="US", customPlacementConfig=three
    )
    for kind in ("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE", "standard"):
        yield made(f"a bucket has the class {kind}", storageClass=kind)
    yield made("a bucket has no class FROZEN", code=400, part="Invalid storage class", storageClass="FROZEN")
    for labels, code in (
        ({"k": "v"}, 200),
        ({"k" * 63: "v" * 63}, 200),
        ({"k": ""}, 200),
        ({f"k{number}": "" for number in range(64)}, 200),
        ({f"k{number}": "" for number in range(65)}, 400),
        ({"K": "v"}, 400),
        ({"1k": "v"}, 400),
        ({"k": "V"}, 400),
        ({"k" * 64: ""}, 400),
        ({"k": "v" * 64}, 400),
        ({"k": 1}, 400),
    ):
        shown = str(labels)[:24] if len(labels) < 2 else f"{len(labels)} labels"
        yield made(
            f"labels of a bucket: {shown} ({len(str(labels))})",
            code=code,
            part="label" if code == 400 else "",
            labels=labels,
        )
    for seconds, code in (
        ("0", 200), (0, 200), ("604800", 200), ("7776000", 200), ("3600", 400), ("604799", 400), ("7776001", 400), ("-1", 400),
        ("week", 400),
    ):  # fmt: skip
        policy = {"retentionDurationSeconds": seconds}
        part = "retentionDurationSeconds of a bucket is 0, or from 604800 to 7776000" if code == 400 else ""
        yield made(f"soft delete of {seconds!r} s", code=code, part=part, softDeletePolicy=policy)
    for word, code in (("enforced", 200), ("inherited", 200), ("zork", 400), ("ENFORCED", 400), (True, 400)):
        access = {"publicAccessPrevention": word}
        part = "publicAccessPrevention" if code == 400 else ""
        yield made(f"publicAccessPrevention {word}", code=code, part=part, iamConfiguration=access)
    for enabled, code in ((True, 200), (False, 200), ("yes", 400)):
        uniform = {"uniformBucketLevelAccess": {"enabled": enabled}}
        yield made(f"uniform access {enabled}", code=code, part="uniform", iamConfiguration=uniform)
    yield made("versioning is a switch", code=400, part="versioning.enabled", versioning={"enabled": "on"})
    yield made("a bucket has no field colour", code=400, part="Unknown name 'colour'", colour="red")


def lifecycle() -> Iterator[Rule]:
    delete, old = {"type": "Delete"}, {"age": 30}
    nearline = {"type": "SetStorageClass", "storageClass": "NEARLINE"}
    abort = {"type": "AbortIncompleteMultipartUpload"}
    good: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("delete by age", delete, old),
        ("delete at once", delete, {"age": 0}),
        ("delete by prefix", delete, {"age": 1, "matchesPrefix": ["tmp/"]}),
        ("delete by suffix", delete, {"age": 1, "matchesSuffix": [".part"]}),
        ("delete by date", delete, {"createdBefore": "2026-11-28"}),
        ("delete old versions", delete, {"numNewerVersions": 3, "isLive": False}),
        ("delete by class", delete, {"age": 1, "matchesStorageClass": ["STANDARD", "NEARLINE"]}),
        ("delete by custom time", delete, {"daysSinceCustomTime": 7}),
        ("delete noncurrent ones", delete, {"daysSinceNoncurrentTime": 7}),
        ("set a class", nearline, old),
        ("abort uploads", abort, old),
        ("a null is no condition and no class", {**delete, "storageClass": None}, {**old, "isLive": None}),
    )
    for says, action, condition in good:
        yield made(f"lifecycle: {says}", lifecycle={"rule": [{"action": action, "condition": condition}]})
    bad: tuple[tuple[str, Any, str], ...] = (
        ("an action", {"condition": old}, "needs an action"),
        ("a known action", {"action": {"type": "Remove"}, "condition": old}, "needs an action with a type"),
        ("a type of text", {"action": {"type": ["Delete"]}, "condition": old}, "needs an action with a type"),
        ("a condition", {"action": delete}, "at least one condition"),
        ("a condition that is not empty", {"action": delete, "condition": {}}, "at least one condition"),
        ("a known condition", {"action": delete, "condition": {"olderThan": 3}}, "Unknown condition 'olderThan'"),
        ("a class to set", {"action": {"type": "SetStorageClass"}, "condition": old}, "needs a storageClass"),
        ("a known class", {"action": {**nearline, "storageClass": "FROZEN"}, "condition": old}, "needs a storageClass"),
        (
            "no class to delete",
            {"action": {**delete, "storageClass": "NEARLINE"}, "condition": old},
            "has no 'storageClass'",
        ),
        ("an age of a number", {"action": delete, "condition": {"age": "month"}}, "a whole number of 0 or more"),
        ("an age that is not negative", {"action": delete, "condition": {"age": -1}}, "a whole number of 0 or more"),
        ("a date", {"action": delete, "condition": {"createdBefore": "yesterday"}}, "a date such as"),
        ("a date of the calendar", {"action": delete, "condition": {"createdBefore": "2026-13-01"}}, "a date such as"),
        ("isLive of true or false", {"action": delete, "condition": {"isLive": "no"}}, "true or false"),
        ("a list of prefixes", {"action": delete, "condition": {"matchesPrefix": "tmp/"}}, "a list of strings"),
        ("known classes", {"action": delete, "condition": {"matchesStorageClass": ["FROZEN"]}}, "a list of ARCHIVE"),
        (
            "only age and names for uploads",
            {"action": abort, "condition": {"isLive": True}},
            "has only the conditions age",
        ),
        ("no other fields", {"action": delete, "condition": old, "colour": 1}, "Unknown name 'colour'"),
        ("objects", "Delete", "a list of objects"),
    )
    for says, rule, part in bad:
        yield made(f"lifecycle: a rule has {says}", code=400, part=part, lifecycle={"rule": [rule]})
    rule = {"action": delete, "condition": old}
    yield made("lifecycle: 100 rules", lifecycle={"rule": [rule] * 100})
    yield made(
        "lifecycle: no 101 rules", code=400, part="at most 100 lifecycle rules", lifecycle={"rule": [rule] * 101}
    )
    many = {"action": delete, "condition": {"matchesPrefix": [f"p{number}/" for number in range(1001)]}}
    yield made("lifecycle: no 1001 prefixes", code=400, part="at most 1000 prefixes", lifecycle={"rule": [many]})


def buckets() -> Iterator[Rule]:
    path = "/storage/v1/b/mine"
    yield Rule(
        says="a bucket exists once", path=BUCKETS, body={"name": "mine"}, code=409, name="conflict", before=[BUCKET]
    )
    yield Rule(says="a bucket that is not there", method="GET", path=path, code=404, name="notFound")
    full = [BUCKET, put("x")]
    yield Rule(says="a bucket with objects stays", method="DELETE", path=path, code=409, name="conflict", before=full)
    yield Rule(says="an empty bucket goes", method="DELETE", path=path, code=204, before=[BUCKET])
    for method in ("PATCH", "PUT"):
        moved = {"location": "EU"}
        says = f"a bucket is not moved by {method}"
        yield Rule(says=says, method=method, path=path, body=moved, code=400, part="cannot be changed", before=[BUCKET])
    stale = f"{path}?ifMetagenerationMatch=7"
    yield Rule(
        says="a bucket is changed if its metageneration matches",
        method="PATCH",
        path=stale,
        body={"labels": {}},
        code=412,
        name="conditionNotMet",
        before=[BUCKET],
    )
    hour = {"softDeletePolicy": {"retentionDurationSeconds": "3600"}}
    yield Rule(
        says="a patch follows the rules too",
        method="PATCH",
        path=path,
        body=hour,
        code=400,
        name="invalid",
        before=[BUCKET],
    )
    wrong = f"{path}?ifMetagenerationmatch=1"
    yield Rule(
        says="a precondition is spelt right",
        method="GET",
        path=wrong,
        code=400,
        part="has no parameter",
        before=[BUCKET],
    )
    yield Rule(
        says="a policy names accounts that exist",
        method="PUT",
        path=f"{path}/iam",
        body=_policy(),
        code=400,
        part="does not exist",
        before=[BUCKET, ("POST", "/_project", {"absent": [f"{_IAM}/a@acme.iam.gserviceaccount.com"]})],
    )


_IAM = "//iam.googleapis.com/projects/-/serviceAccounts"


def _policy() -> dict[str, Any]:
    return {"bindings": [{"role": "roles/storage.admin", "members": ["serviceAccount:a@acme.iam.gserviceaccount.com"]}]}


def objects() -> Iterator[Rule]:
    here, path = [BUCKET], "/storage/v1/b/mine/o"

    def upload(says: str, called: str, code: int = 200, **more: Any) -> Rule:
        given = {"before": here, "name": "invalid" if code == 400 else "", **more}
        target = f"{UPLOADS}?uploadType=media&name={quote(called, safe='')}"
        return Rule(says=says, path=target, data=b"x", code=code, **given)

    yield upload("a name has 1024 bytes", "n" * 1024)
    yield upload("a name has no 1025 bytes", "n" * 1025, 400, part="Invalid object name")
    yield upload("a name's letters count in UTF-8", "ü" * 513, 400, part="Invalid object name")
    yield upload("a name has slashes and spaces", "a/b c//d")
    for name in (".", "..", "a\nb", "a\rb", ".well-known/acme-challenge/x"):
        yield upload(f"{name!r} is no name of an object", name, 400, part="Invalid object name")
    yield upload("an upload has a name", "", 400, part="Required")
    yield upload("an upload needs its bucket", "x", 404, before=[], name="notFound")
    there = [BUCKET, put("x")]
    for query, code in (
        ("ifGenerationMatch=0", 412), ("ifGenerationMatch=1", 412), ("ifGenerationNotMatch=0", 200),
        ("ifMetagenerationMatch=1", 200), ("ifMetagenerationMatch=2", 412), ("ifMetagenerationNotMatch=1", 412),
    ):  # fmt: skip
        target = f"{UPLOADS}?uploadType=media&name=x&{query}"
        name = "conditionNotMet" if code == 412 else ""
        yield Rule(
            says=f"an upload over an object with {query}", path=target, data=b"y", code=code, name=name, before=there
        )
    first = f"{UPLOADS}?uploadType=media&name=new&ifGenerationMatch=0"
    yield Rule(says="generation 0 is no object", path=first, data=b"y", before=here)
    yield Rule(
        says="a generation is a number",
        path=first.replace("=0", "=x"),
        data=b"y",
        code=400,
        name="invalid",
        before=here,
    )
    for query, code, name in (
        ("", 200, ""), ("?generation=1", 404, "notFound"), ("?generation=x", 400, "invalid"),
        ("?ifGenerationMatch=1", 412, "conditionNotMet"),
        ("?ifMetagenerationNotMatch=1", 304, ""), ("?alt=media", 200, ""), ("?ifgenerationmatch=1", 400, "invalid"),
    ):  # fmt: skip
        yield Rule(says=f"a get of an object {query}", method="GET", path=f"{path}/x{query}", code=code, before=there,
                   name=name if code != 304 else "")  # fmt: skip
    yield Rule(says="a get of no object", method="GET", path=f"{path}/y", code=404, name="notFound", before=there)
    for text, code in (("bytes=0-0", 206), ("bytes=9-", 416), ("bytes=-1", 206)):
        yield Rule(
            says=f"a download of {text}",
            method="GET",
            path=f"{path}/x?alt=media",
            headers={"Range": text},
            code=code,
            before=there,
        )
    for says, digest, code in (
        ("the right MD5", base64.b64encode(hashlib.md5(b"x", usedforsecurity=False).digest()).decode(), 200),
        ("the wrong MD5", base64.b64encode(bytes(16)).decode(), 400),
    ):
        hashes = {"x-goog-hash": f"md5={digest}"}
        target = f"{UPLOADS}?uploadType=media&name=x"
        yield Rule(says=f"an upload with {says}", path=target, data=b"x", headers=hashes, code=code, before=here)
    yield Rule(
        says="an upload has a type", path=f"{UPLOADS}?name=x", data=b"x", code=400, part="uploadType", before=here
    )
    for query, code in (
        ("maxResults=1", 200),
        ("maxResults=x", 400),
        ("maxResults=-1", 400),
        ("pageToken=x", 400),
        ("prfix=a", 400),
    ):
        yield Rule(says=f"a list with {query}", method="GET", path=f"{path}?{query}", code=code, before=there)
    yield Rule(says="a delete of no object", method="DELETE", path=f"{path}/y", code=404, name="notFound", before=here)
    yield Rule(
        says="a delete of another generation",
        method="DELETE",
        path=f"{path}/x?ifGenerationMatch=1",
        code=412,
        before=there,
    )


def metadata() -> Iterator[Rule]:
    here, path = [BUCKET, put("x")], "/storage/v1/b/mine/o/x"

    def patch(says: str, body: Any, code: int = 200, part: str = "", before: Any = (), method: str = "PATCH") -> Rule:
        name = "invalid" if code == 400 else ""
        return Rule(
            says=says, method=method, path=path, body=body, code=code, part=part, name=name, before=[*here, *before]
        )

    yield patch("metadata of 8 KiB", {"metadata": {"k" * 192: "v" * 8000}})
    over = "exceed the maximum allowed metadata size"
    yield patch("no metadata of more than 8 KiB", {"metadata": {"k" * 192: "v" * 8001}}, 400, over)
    yield patch("no metadata of 20 kB", {"metadata": {"k": "v" * 20_000}}, 400, over)
    half = ("PATCH", path, {"metadata": {"a": "v" * 6000}})
    yield patch("metadata of two patches count together", {"metadata": {"b": "v" * 6000}}, 400, over, [half])
    yield patch("metadata that are replaced do not count", {"metadata": {"a": None, "b": "v" * 6000}}, before=[half])
    yield patch("a value of metadata is a string", {"metadata": {"k": 1}}, 400, "map names to strings")
    yield patch("an object has no field colour", {"colour": "red"}, 400, "Unknown name 'colour'")
    yield patch("a customTime is a time", {"customTime": "2026-11-28T08:00:00Z"})
    for time in ("2026-11-28", "2026-13-45T08:00:00Z", "2026-11-28T08:00:60Z", "2026-11-28T24:00:01Z"):
        yield patch(f"a customTime is not {time}", {"customTime": time}, 400, "customTime is a time")
    at = ("PATCH", path, {"customTime": "2026-11-28T08:00:00Z"})
    for says, time, code in (
        ("moves on", "2026-11-28T08:00:00.001Z", 200),
        ("stays", "2026-11-28T08:00:00Z", 200),
        ("stays in another zone", "2026-11-28T09:00:00+01:00", 200),
        ("does not move back", "2026-11-28T07:59:59Z", 400),
        ("does not move back in another zone", "2026-11-28T08:30:00+01:00", 400),
        ("is not removed", None, 400),
    ):
        part = "moved forward only" if code == 400 else ""
        yield patch(f"a customTime {says}", {"customTime": time}, code, part, [at])
    yield patch(
        "a customTime is not left out of an update", {"contentType": "x/y"}, 400, "moved forward only", [at], "PUT"
    )

    cold = ("POST", f"{path}/rewriteTo/b/mine/o/x", {"storageClass": "COLDLINE"})
    yield patch("an update keeps the class", {"contentType": "x/y"}, part="COLDLINE", before=[cold], method="PUT")


def compose() -> Iterator[Rule]:
    path = "/storage/v1/b/mine/o/all/compose"

    def composed(says: str, sources: list[dict[str, Any]], code: int = 200, before: Any = (), **more: Any) -> Rule:
        body = {"sourceObjects": sources, **more.pop("fields", {})}
        return Rule(says=says, path=path, body=body, code=code, before=[BUCKET, put("x"), *before], **more)

    one = [{"name": "x"}]
    yield composed("a compose of 32 objects", one * 32)
    yield composed("no compose of 33 objects", one * 33, 400, part="from 1 to 32", name="invalid")
    yield composed("no compose of nothing", [], 400, part="from 1 to 32", name="invalid")
    yield composed("a compose needs its sources", [{"name": "y"}], 404, name="notFound")
    colder = [("PATCH", "/storage/v1/b/mine", {"storageClass": "NEARLINE"}), put("cold")]
    mixed = [{"name": "x"}, {"name": "cold"}]
    yield composed("a compose of one class", [{"name": "cold"}] * 2, before=colder)
    warmer = ("PATCH", "/storage/v1/b/mine", {"storageClass": "STANDARD"})
    yield composed("a compose keeps the class", [{"name": "cold"}], before=[*colder, warmer], part="NEARLINE")
    yield composed("no compose across classes", mixed, 400, before=colder, part="NEARLINE, STANDARD", name="invalid")
    other = {"destination": {"storageClass": "COLDLINE"}}
    yield composed("no compose into another class", one, 400, fields=other, part="COLDLINE, STANDARD", name="invalid")
    stale = [{"name": "x", "objectPreconditions": {"ifGenerationMatch": "1"}}]
    yield composed("a source of a compose has its generation", stale, 412, name="conditionNotMet")


def resumable() -> Iterator[Rule]:
    def session(served: Served) -> str:
        begun = requests.post(f"{served.url}{UPLOADS}?uploadType=resumable&name=big", json={}, timeout=60)
        return begun.headers["Location"].removeprefix(served.url)

    def chunk(says: str, size: int, content_range: str, code: int, part: str = "", name: str = "") -> Rule:
        return Rule(
            says=says,
            method="PUT",
            path="",
            data=b"x" * size,
            headers={"Content-Range": content_range},
            code=code,
            part=part,
            name=name,
            before=[BUCKET],
            found=session,
        )

    yield chunk("a chunk of a unit", UNIT, f"bytes 0-{UNIT - 1}/*", 308)
    yield chunk("a chunk of a unit and five bytes", UNIT + 5, f"bytes 0-{UNIT + 4}/*", 308)
    yield chunk(
        "a chunk of five bytes that is not the last", 5, "bytes 0-4/*", 400, "equal or greater than 262144", "invalid"
    )
    yield chunk("a last chunk of five bytes", 5, "bytes 0-4/5", 200, '"size":"5"')
    yield chunk("a chunk begins where the upload is", UNIT, f"bytes {UNIT}-{2 * UNIT - 1}/*", 400, name="invalid")
    yield chunk("a Content-Range can be parsed", 5, "bytes 4-0/5", 400, "Failed to parse", "invalid")
    yield chunk("a Content-Range is within the total", 5, "bytes 0-4/3", 400, "Failed to parse", "invalid")
    yield chunk("a state is asked without bytes", 0, "bytes */*", 308)
    yield Rule(
        says="a cancelled upload ends with 499", method="DELETE", path="", code=499, before=[BUCKET], found=session
    )
    lost = f"{UPLOADS}?uploadType=resumable&upload_id=none"
    yield Rule(
        says="a session that is not there",
        method="PUT",
        path=lost,
        data=b"x",
        code=404,
        name="notFound",
        before=[BUCKET],
    )


RULES = [
    *names(), *settings(), *lifecycle(), *buckets(), *objects(), *metadata(), *compose(), *resumable(),
]  # fmt: skip
