"""Inputs are looked for before anything starts, on this disk, in Google's storage and on the web; and programs find them."""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import threading
import urllib.parse
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from support import LIMIT_S, said, serving

import sdk
from sdk.errors import AccessError
from sdk.process.redirect.proxy import Redirect
from sdk.storage import urls
from sdk.storage.data import find_unreachable, resolve
from sdk.storage.gcs import auth
from sdk.storage.gcs.requests import GcsStatusError
from sdk.storage.retry import RetryPolicy

OBJECTS = {"data": ["train/a.tfrecord", "train/b.tfrecord", "train.csv", "odd [1].csv"], "empty": []}
ONE = {"size": "1", "generation": "1"}
REFUSED = {
    "forbidden": (403, "me@example.com does not have storage.objects.get access to the object."),
    "private": (401, "Anonymous caller does not have storage.objects.get access to the object."),
    "sick": (503, "Try again later."),
    "owner-pays": (400, "Bucket is a requester pays bucket but no user project provided."),
}


def answered(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
    """Answer as Google's storage does to a look-up, as a token service that refuses, and as a web server."""
    path, _, query = request.path.partition("?")
    bucket, _, rest = path.removeprefix("/storage/v1/b/").partition("/o")
    name, asked = urllib.parse.unquote(rest.removeprefix("/")), dict(urllib.parse.parse_qsl(query))
    if request.command == "POST":
        code, body = 400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
    elif request.command == "HEAD" or not path.startswith("/storage/v1/b/"):
        no_head = 405 if request.command == "HEAD" else 200
        codes = {"/there.csv": 200, "/gone": 410, "/secret": 403, "/broken": 500, "/no-head": no_head}
        code, body = codes.get(request.path, 404), {}
    elif bucket in REFUSED:
        code, body = refusal(*REFUSED[bucket])
    elif name not in ("", *OBJECTS.get(bucket, [])):
        code, body = refusal(404, f"No such object: {bucket}/{name}")
    elif bucket not in OBJECTS:
        code, body = refusal(404, "The specified bucket does not exist.")
    else:
        code, body = 200, {**ONE, "name": name} if name else listing(OBJECTS[bucket], asked)
    return code, json.dumps(body).encode()


def refusal(code: int, message: str) -> tuple[int, dict]:
    return code, {"error": {"code": code, "message": message, "errors": [{"message": message}]}}


def listing(names: list[str], asked: dict[str, str]) -> dict:
    found = [name for name in names if name.startswith(asked.get("prefix", ""))]
    if "matchGlob" in asked:
        found = [name for name in found if fnmatch.fnmatchcase(name, asked["matchGlob"])]
    folders: list[str] = []
    if asked.get("delimiter"):
        start = len(asked.get("prefix", ""))
        folders = sorted({name[: name.index("/", start) + 1] for name in found if "/" in name[start:]})
        found = [name for name in found if "/" not in name[start:]]
    items = [{**ONE, "name": name} for name in found[: int(asked.get("maxResults", 1000))]]
    return {"items": items, "prefixes": folders}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the server; Google's client is not told of it."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    hang = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        if "/b/hanging/" in request.path:
            hang.wait()
        return answered(request)

    with serving(answer) as address:
        yield f"http://{address}"
        hang.set()


@pytest.fixture
def google(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's storage is this server, as for everybody who uses an emulator."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)


@pytest.fixture
def internet(server: str, podlift_gcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Google's real addresses lead to an emulator and to this server; there are no credentials."""
    podlift_gcs.client().create_bucket("data").blob("train.csv").upload_from_string("1")
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{server}/token")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with Redirect(podlift_gcs.url, tmp_path / "redirect", {}) as redirect:
        for name in ("https_proxy", "REQUESTS_CA_BUNDLE"):
            monkeypatch.setenv(name, redirect.environment[name])
        yield
    # Connections are kept for the process, with the credentials of their first use.
    auth._connect.cache_clear()


def problem(place: str, base: Path = Path("/")) -> str:
    with pytest.raises(sdk.InputError) as caught:
        resolve({"train": place}, base)
    (said,) = caught.value.problems
    assert said.startswith("inputs.train: ")
    return said


def test_paths_become_absolute_and_urls_stay(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a b", "c", "d%41", "dA"):
        write(f"data/{name}.csv", "1")
    here = tmp_path / "project"
    found = {
        "data": "data",
        "./data/": "data/",
        "data/a b.csv": "data/a b.csv",
        "data/../data/c.csv": "data/c.csv",
        str(here / "data"): "data",
        "~/project/data": "data",
        f"file://{here}/data/a b.csv": "data/a b.csv",
        (here / "data/a b.csv").as_uri(): "data/a b.csv",
        f"file://{here}/data/d%41.csv": "data/d%41.csv",
        "data/*.csv": "data/*.csv",
        "**/c.[ct]sv": "**/c.[ct]sv",
    }
    places, findings = resolve({given: given for given in found}, here)
    assert (places, findings) == ({given: f"{here}/{path}" for given, path in found.items()}, [])


def test_brackets_in_an_existing_name_are_literal_and_a_pattern_escapes_its_folder(tmp_path) -> None:
    home = tmp_path / "[1]"
    home.mkdir()
    (home / "a[b].csv").write_text("1")
    places, _ = resolve({"name": "a[b].csv", "pattern": "a*.csv"}, home)
    assert places == {"name": f"{home}/a[b].csv", "pattern": f"{tmp_path}/[[]1]/a*.csv"}


def test_two_dots_after_a_link_mean_the_same_as_to_the_system(tmp_path: Path) -> None:
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "far/data").write_text("1")
    (tmp_path / "link").symlink_to("far/away")
    places, _ = resolve({"data": "link/../data"}, tmp_path)
    assert Path(places["data"]).read_text() == "1"


def test_an_empty_folder_is_worth_a_warning(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    _, (finding,) = resolve({"train": "data"}, tmp_path)
    assert (finding.level, finding.message) == ("warning", f"inputs.train: '{tmp_path}/data' is an empty folder.")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "It is empty."),
        ("dta", "There is no '{base}/dta'. In '{base}': Did you mean 'data'? Received: 'dta'."),
        ("data/tran.csv", "In '{base}/data': Did you mean 'train.csv'?"),
        ("data/zzz", "There are n00, n01, n02, n03, n04, n05, n06, n07 and 13 more."),
        ("file.csv/x", "'{base}/file.csv' is a file."),
        ("file.csv/", "'{base}/file.csv' is a file, not a folder."),
        ("broken", "'{base}/broken' is a link to '{base}/nowhere', which does not exist."),
        ("loop", "'{base}/loop' is a link to"),
        ("data/*.parquet", "No file matches '{base}/data/*.parquet'."),
        ("gs:/bucket/x", "Did you mean 'gs://bucket/x'?"),
        ("~nobody-of-this-name/x", "not a usable path: could not determine home directory."),
        ("a\0b", "not a usable path: embedded null byte."),
        ("file://elsewhere/x", "starts with file:///"),
    ],
)
def test_a_missing_file_is_named_with_the_existing_ones(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train.csv", *(f"n{i:02}" for i in range(20))):
        (tmp_path / "data" / name).write_text("1")
    (tmp_path / "file.csv").write_text("1")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    assert said.format(base=tmp_path) in problem(place, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_input_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0)
    assert "Permission denied" in problem("data", tmp_path)
    (tmp_path / "file").write_text("1")
    (tmp_path / "file").chmod(0)
    assert "Permission denied" in problem("file", tmp_path)


def test_all_inputs_mistakes_come_in_one_error_in_their_order(google: None, server: str, tmp_path: Path) -> None:
    given = {"a": "nowhere", "b": "gs://data/nowhere", "c": "memory://x", "d": f"{server}/nowhere", "e": str(tmp_path)}
    with pytest.raises(sdk.InputError) as caught:
        resolve(given, tmp_path)
    assert [text.partition(":")[0] for text in caught.value.problems] == [f"inputs.{name}" for name in "abcd"]


@pytest.mark.parametrize(
    "place",
    [
        "https://me:hunter2@example.com/x",
        "sftp://me:hunter2@example.com/x",
        "https://example.com/x?X-Amz-Signature=hunter2",
        "https://example.com/x?a=b&access_token=hunter2",
        "https://account.blob.core.windows.net/x?sv=2020&sig=hunter2",
        "simplecache::https://me:hunter2@example.com/x",
        "zip://a.csv::s3://key:hunter2@bucket/b.zip",
        "https:/me:hunter2@example.com/x",
        "http://me:hunter2@[::1/x",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(place: str) -> None:
    said = problem(place)
    assert "hunter2" not in said
    assert "credentials" in said or "password" in said


@pytest.mark.parametrize("place", ["gs://data", "gs://data/train/*.tfrecord", "gs://data/odd [1].csv"])
def test_objects_folders_and_patterns_of_a_bucket_are_found(google: None, place: str) -> None:
    assert resolve({"train": place}, Path("/")) == ({"train": place}, [])


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("gs://data/trian.csv", "no object of this name or below it. In gs://data/: Did you mean 'train.csv'?"),
        ("gs://data/train/c.tfrecord", "In gs://data/train/: Did you mean 'b.tfrecord'?"),
        ("gs://data/*.parquet", "No object of the bucket 'data' matches '*.parquet'."),
        ("gs://empty", "The bucket 'empty' is empty."),
        ("gs://nobodys", "there is no bucket 'nobodys'."),
        ("gs://forbidden/x", "permission denied (403): me@example.com does not have"),
        (
            "gs://forbidden/x",
            "by the bucket's owner: gcloud storage buckets add-iam-policy-binding gs://forbidden "
            "--member=user:me@example.com --role=roles/storage.objectViewer.",
        ),
        ("gs://private/x", "the credentials are not accepted (401)"),
        ("gs://sick/x", " has failed (503): Try again later."),
        ("gs://owner-pays/x", "rejects the request (400): Bucket is a requester pays bucket"),
    ],
)
def test_an_error_of_google_becomes_a_sentence(google: None, place: str, said: str, monkeypatch) -> None:
    monkeypatch.setattr(urls, "_RETRY", RetryPolicy(total_s=1.0, first_s=1.0))
    assert said in problem(place)


def test_the_vendors_own_error_is_chained(google: None) -> None:
    with pytest.raises(sdk.InputError) as caught:
        resolve({"train": "gs://forbidden/x"}, Path("/"))
    vendor = caught.value.__cause__
    assert isinstance(vendor, AccessError)
    assert isinstance(vendor.__cause__, GcsStatusError)
    assert vendor.__cause__.code == 403


def test_a_public_bucket_needs_no_credentials(internet: None) -> None:
    _, (finding,) = resolve({"train": "gs://data/train.csv"}, Path("/"))
    assert (finding.level, "the bucket is public" in finding.message) == ("note", True)


def test_missing_and_expired_credentials_name_the_command(internet, podlift_gcs, tmp_path, monkeypatch) -> None:
    podlift_gcs.faults({"kind": "status_before", "status": 401, "path": "private"})
    said = problem("gs://private/x")
    assert "no credentials were found" in said and "Next: gcloud auth application-default login." in said
    auth._connect.cache_clear()
    user = {"type": "authorized_user", "client_id": "i", "client_secret": "hunter2", "refresh_token": "hunter2"}
    (tmp_path / "user.json").write_text(json.dumps(user))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "user.json"))
    said = problem("gs://data/train.csv")
    assert "Token has been expired or revoked" in said
    assert "Next: gcloud auth application-default login." in said
    assert "hunter2" not in said


def test_an_emulator_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    said = problem("gs://data/x")
    assert "The emulator that STORAGE_EMULATOR_HOST names is not running" in said and "InputError" not in said


def test_ten_inputs_are_asked_for_at_once(server: str) -> None:
    together = threading.Barrier(10)

    def web(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        # Breaks, and so answers nothing, unless all ten are waiting here.
        together.wait(timeout=20)
        return 200, b"{}"

    with serving(web) as address:
        answers = urls.probe_urls([f"http://{address}/there.csv#part={number}" for number in range(10)])
    assert [answer.problem for answer in answers] == [""] * 10


def test_an_unforeseen_error_belongs_to_its_input_alone(google: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> None:
        raise RuntimeError("a bug of the vendor")

    monkeypatch.setattr(urls, "_probe_fsspec", fail)
    odd, fine = urls.probe_urls(["s3://bucket/x", "gs://data/train.csv"])
    assert "It could not be checked: " in odd.problem and "a bug of the vendor" in odd.problem and not fine.problem


def test_a_server_that_never_answers_is_waited_for_no_longer_than_allowed(google: None) -> None:
    late, fine = urls.probe_urls(["gs://hanging/x", "gs://data/train.csv"], limit_s=1)
    assert "No response within 1 s" in late.problem
    assert fine.problem == ""


def test_an_error_of_a_web_server_becomes_a_sentence(server: str) -> None:
    given = {"train": f"{server}/there.csv", "head": f"{server}/no-head"}
    assert resolve(given, Path("/")) == (given, [])
    assert "It does not exist: the server returned 404 Not Found." in problem(f"{server}/nowhere")
    assert "It does not exist: the server returned 410 Gone." in problem(f"{server}/gone")
    assert "It needs credentials: the server returned 403 Forbidden." in problem(f"{server}/secret")
    assert "It cannot be read: the server returned 500 Internal Server Error." in problem(f"{server}/broken")
    assert "It does not exist: the server returned 404" in problem(f"{server}/größe mit blank")
    assert "cannot be reached" in problem("http://nowhere.invalid/x")
    refused = problem("http://127.0.0.1:1/x")
    assert "cannot be reached" in refused and "Connection refused" in refused


def test_a_protocol_names_its_package_or_the_nearest_and_this_process_is_no_place() -> None:
    assert "Unknown protocol. Received: 'gss'. Did you mean 'gs'?" in problem("gss://bucket/x")
    assert "Next: pip install s3fs." in problem("s3://bucket/x")
    assert "Next: pip install paramiko." in problem("sftp://host/x")
    assert all("this process only" in problem(place) for place in ("memory://x", "simplecache::memory://x"))


def test_a_chain_is_looked_up_to_its_last_part(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a.csv", "1")
    assert resolve({"train": "zip://a.csv::all.zip"}, tmp_path)[0] == {"train": f"zip://a.csv::{tmp_path}/all.zip"}
    assert resolve({"train": "zip://*.csv::all.zip"}, tmp_path)[0] == {"train": f"zip://*.csv::{tmp_path}/all.zip"}
    assert "It does not exist." in problem("zip://b.csv::all.zip", tmp_path)
    assert "Nothing matches it." in problem("zip://*.tsv::all.zip", tmp_path)
    assert f"In '{tmp_path}': Did you mean 'all.zip'?" in problem("zip://a.csv::al.zip", tmp_path)


def test_a_disk_is_refused_where_the_tasks_do_not_see_it_with_the_command_that_helps() -> None:
    given = {
        "plain": "/data/train",
        "odd": "/my data/it's; $HOME",
        "slash": "/data/train/",
        "some": "/data/*.csv",
        "zip": "zip://a.csv::/data/b.zip",
        "cloud": "gs://bucket/x",
        "web": "https://example.com/x",
    }
    assert find_unreachable(given, disk=True) == []
    found = find_unreachable(given, disk=False)
    assert {finding.level for finding in found} == {"error"}
    said = {f.message.partition(":")[0].removeprefix("inputs."): f.message for f in found}
    assert list(said) == ["plain", "odd", "slash", "some", "zip"]
    commands = {name: text.partition("BUCKET: ")[2].partition(" and then ")[0] for name, text in said.items()}
    copy = ["gcloud", "storage", "cp", "--recursive"]
    assert shlex.split(commands["odd"]) == [*copy, "/my data/it's; $HOME", "gs://BUCKET/odd/"]
    assert shlex.split(commands["some"]) == [*copy, "/data/*.csv", "gs://BUCKET/some/"]
    assert said["plain"].endswith("and then inputs={'plain': 'gs://BUCKET/plain/train'}.")
    assert said["slash"].endswith("inputs={'slash': 'gs://BUCKET/slash/train'}.")
    assert said["zip"].endswith("inputs={'zip': 'zip://a.csv::gs://BUCKET/zip/b.zip'}.")


def test_a_place_on_a_missing_network_or_on_another_machines_loopback_is_refused() -> None:
    given = {"disk": "/data", "cloud": "gs://bucket/x", "own": "http://localhost:8000/x", "six": "http://[::1]/x"}
    found = [f.message.partition(":")[0] for f in find_unreachable(given, disk=True, network=False)]
    assert found == ["inputs.cloud", "inputs.own", "inputs.six"]
    cloud = [f.message for f in find_unreachable(given, disk=False)]
    assert [text.partition(":")[0] for text in cloud] == ["inputs.disk", "inputs.own", "inputs.six"]
    assert "is a server on this machine's loopback address" in cloud[1]


@pytest.mark.process
def test_the_program_finds_a_path_that_was_relative_to_the_callers_folder(write, tmp_path: Path) -> None:
    text = """
        import json, os, sdk
        place = sdk.context().inputs["train"]
        print(place, open(os.path.join(place, "a.csv")).read())
    """
    write("train.py", text)
    write("../data/a.csv", "1,2")
    run = sdk.submit(sdk.Job("train.py", inputs={"train": Path("../data")}, resources=sdk.Resources(workers=2)))
    run.result(LIMIT_S)
    for task in run.plan.tasks:
        assert said(run, task) == [f"{tmp_path}/data 1,2"]
    assert run.plan.inputs == {"train": f"{tmp_path}/data"}


@pytest.mark.process
def test_a_function_finds_them_too_and_a_plan_shows_them(write, tmp_path: Path) -> None:
    write("train.py", "import sdk\ndef main():\n    return sdk.context().inputs\n")
    write("data.csv", "1")
    job = sdk.Job("train:main", inputs={"train": "data.csv", "all": "*.csv"})
    plan = sdk.plan(job)
    places = {"train": f"{tmp_path}/project/data.csv", "all": f"{tmp_path}/project/*.csv"}
    assert places["train"] in str(plan)
    assert sdk.submit(plan).result(LIMIT_S).value == places


def test_an_input_that_is_not_there_starts_nothing(write, root: Path) -> None:
    write("train.py", "print(1)")
    write("data/train.csv")
    job = sdk.Job("train.py", inputs={"train": "data/tran.csv", "test": "memory://x"})
    with pytest.raises(sdk.InputError) as caught:
        sdk.submit(job)
    assert len(caught.value.problems) == 2
    assert "Did you mean 'train.csv'?" in str(caught.value)
    assert not root.exists()
