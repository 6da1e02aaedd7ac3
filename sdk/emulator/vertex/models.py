"""The Model Registry, by the messages of google.cloud.aiplatform.v1.ModelService and google-cloud-aiplatform 2.7."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import data_folder
from ..errors import is_label, words
from ..messages import Problems, read_json, read_message
from . import listing
from .environment import project_number
from .errors import VertexApiError, invalid, not_found
from .jobs import is_number
from .referenced import References
from .timing import EmulatorClock, format_time

_GIVEN = words(
    "displayName description versionDescription versionAliases predictSchemata metadataSchemaUri metadata containerSpec"
    " artifactUri explanationSpec labels encryptionSpec pipelineJob baseModelSource"
)
_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
_ALIAS = re.compile(r"-?[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/models/([^/@]+)(?:@([^/@]+))?")
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]+)(/.*)?")
_MAX_NAME = 128
_DEFAULT = "default"
_PREFIX = "type.googleapis.com/google.cloud.aiplatform.v1."
_VERSION = 1
_SCHEMA = """
CREATE TABLE versions (
    project TEXT, region TEXT, model TEXT, version INTEGER, resource TEXT NOT NULL,
    PRIMARY KEY (project, region, model, version)
);
CREATE TABLE aliases (
    project TEXT, region TEXT, model TEXT, alias TEXT, version INTEGER NOT NULL, PRIMARY KEY (project, region, model, alias)
);
CREATE TABLE numbers (project TEXT, region TEXT, model TEXT, last INTEGER NOT NULL, PRIMARY KEY (project, region, model));
CREATE TABLE operations (id INTEGER PRIMARY KEY, place TEXT NOT NULL, operation TEXT NOT NULL);
"""
_CLEAR = "BEGIN; DELETE FROM versions; DELETE FROM aliases; DELETE FROM numbers; DELETE FROM operations; COMMIT;"
_OF_MODEL = "project = ? AND region = ? AND model = ?"


class ModelRegistry:
    """The models of one data folder, with the calls of the API. Safe to use from any thread."""

    def __init__(self, path: Path, clock: EmulatorClock, new_id: Callable[[], int], references: References) -> None:
        self._clock, self._new_id, self._references = clock, new_id, references
        self._lock = threading.RLock()
        self._db = data_folder.open_database(path, _SCHEMA, _VERSION, any_thread=True)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def clear(self) -> None:
        with self._lock:
            self._db.executescript(_CLEAR)

    def upload(self, project: str, region: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Create a model or a version of one, and return the operation, which the next request finds completed."""
        model = {name: value for name, value in request.get("model", {}).items() if name in _GIVEN}
        if problems := self._problems(request, model):
            raise invalid(problems)
        self._references.check_location(model.get("artifactUri", ""), region)
        with self._transaction():
            place = (project_number(project), region)
            key = (*place, self._model_id(place, request))
            number = self._next_number(key)
            now = format_time(self._clock.now())
            aliases = model.pop("versionAliases", [])
            first = self._versions(key)[:1]
            created = json.loads(first[0][1])["createTime"] if first else now
            times = {"createTime": created, "updateTime": now, "versionCreateTime": now, "versionUpdateTime": now}
            self._db.execute(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?)", (*key, number, json.dumps({**model, **times}))
            )
            self._merge(key, number, [*aliases, *([] if first else [_DEFAULT])])
            answer = {"model": _name(key), "modelVersionId": str(number)}
            return self._operation(
                f"{_name(key)}/operations", "UploadModel", {"@type": f"{_PREFIX}UploadModelResponse", **answer}
            )

    def _problems(self, request: Mapping[str, Any], model: Mapping[str, Any]) -> Problems:
        name, wanted = model.get("displayName", ""), request.get("modelId", "a")
        wrong = [text for pair in model.get("labels", {}).items() for text in pair if not is_label(text, 64)]
        return [
            *_unless(name, "model.display_name", "Required field is not set: model.display_name."),
            *_unless(len(name) <= _MAX_NAME, "model.display_name", f"{_MAX_NAME} characters are allowed."),
            *_unless(not wrong, "model.labels", f"Not allowed in labels: {', '.join(map(repr, wrong))}."),
            *_unless(_ID.fullmatch(wanted), "model_id", f"Not an id of a model: {wanted[:100]!r}."),
            *_unless(
                not {"modelId", "parentModel"} <= request.keys(),
                "model_id",
                "A version of parent_model has no model_id.",
            ),
            *self._artifact_problems(model.get("artifactUri", ""), model.get("containerSpec")),
            *_alias_problems(model.get("versionAliases", []), "model.version_aliases"),
        ]

    def _artifact_problems(self, uri: str, container: Mapping[str, Any] | None) -> Problems:
        bucket, where = _BUCKET.fullmatch(uri), "model.artifact_uri"
        found = _unless(not uri or bucket, where, f"Not a Cloud Storage URI: {uri[:300]!r}.")
        if bucket:
            exists = self._references.storage.has_bucket(bucket[1])
            found += _unless(exists, where, f"The bucket of {uri[:300]!r} does not exist.")
        spec = "model.container_spec"
        if container is None:
            return [*found, *_unless(not uri, spec, f"Required field is not set: {spec}.")]
        return [
            *found,
            *_unless(container.get("imageUri"), f"{spec}.image_uri", f"Required field is not set: {spec}.image_uri."),
        ]

    def _model_id(self, place: tuple[str, str], request: Mapping[str, Any]) -> str:
        """Return the id of the uploaded model, which exists if it is a parent, and does not if it is named."""
        parent = request.get("parentModel", "")
        if not parent:
            model = request.get("modelId") or str(self._new_id())
            if self._versions((*place, model)):
                raise VertexApiError(
                    409, f"Model with ID {model!r} already exists: a version of it has parent_model instead."
                )
            return str(model)
        match = _NAME.fullmatch(parent)
        if match is None or (project_number(match[1]), match[2]) != place:
            raise invalid([("parent_model", f"Not a model of this location: {parent[:300]!r}.")])
        if not self._versions((*place, match[3])):
            raise not_found(f"Model {parent!r}")
        return match[3]

    def get(self, project: str, region: str, model: str) -> dict[str, Any]:
        with self._lock:
            key, number = self._version(project, region, model)
            return self._resource(key, number, dict(self._versions(key))[number], f"{_name(key)}")

    def list_models(self, project: str, region: str, query: Mapping[str, str]) -> dict[str, Any]:
        with self._lock:
            place = (project_number(project), region)
            found = self._db.execute(
                "SELECT * FROM aliases WHERE project = ? AND region = ? AND alias = 'default'", place
            )
            keys = [((*place, model), number) for _, _, model, _, number in found]
            resources = [self._resource(key, at, dict(self._versions(key))[at], _name(key)) for key, at in keys]
        return _page(resources, query)

    def list_versions(self, project: str, region: str, model: str, query: Mapping[str, str]) -> dict[str, Any]:
        with self._lock:
            key, _ = self._version(project, region, model.partition("@")[0])
            resources = [self._resource(key, at, text, f"{_name(key)}@{at}") for at, text in self._versions(key)]
        return _page(resources, query)

    def merge_aliases(self, project: str, region: str, model: str, body: bytes) -> dict[str, Any]:
        request, problems = read_message("MergeVersionAliasesRequest", read_json(body), "request")
        aliases = request.get("versionAliases", [])
        problems += _alias_problems(aliases, "version_aliases")
        if not aliases or not is_number(model.partition("@")[2]):
            problems.append(("name", "The name has a version id, and version_aliases are required."))
        if problems:
            raise invalid(problems)
        with self._transaction():
            key, number = self._version(project, region, model)
            self._merge(key, number, aliases)
            resource = json.loads(dict(self._versions(key))[number])
            resource["versionUpdateTime"] = format_time(self._clock.now())
            self._db.execute(
                f"UPDATE versions SET resource = ? WHERE {_OF_MODEL} AND version = ?",  # noqa: S608
                (json.dumps(resource), *key, number),
            )
        return self.get(project, region, model)

    def delete_version(self, project: str, region: str, model: str) -> dict[str, Any]:
        with self._transaction():
            key, number = self._version(project, region, model)
            if "@" not in model:
                raise invalid([("name", "The name has to have a version.")])
            if _DEFAULT in self._aliases(key, number):
                text = (
                    "The default version cannot be deleted. Delete the model, or make another version the default one."
                )
                raise VertexApiError(400, text, status="FAILED_PRECONDITION")
            for table in ("versions", "aliases"):
                self._db.execute(f"DELETE FROM {table} WHERE {_OF_MODEL} AND version = ?", (*key, number))  # noqa: S608
            return self._deleted(key)

    def delete(self, project: str, region: str, model: str) -> dict[str, Any]:
        with self._transaction():
            key, _ = self._version(project, region, model)
            for table in ("versions", "aliases", "numbers"):
                self._db.execute(f"DELETE FROM {table} WHERE {_OF_MODEL}", key)  # noqa: S608
            return self._deleted(key)

    def operation(self, project: str, region: str, operation: str) -> dict[str, Any] | None:
        """Return an operation on a model, None if there is none of this number."""
        place = f"projects/{project_number(project)}/locations/{region}/"
        with self._lock:
            row = (
                is_number(operation)
                and self._db.execute(
                    "SELECT operation FROM operations WHERE id = ? AND place = ?", (int(operation), place)
                ).fetchone()
            )
        return dict(json.loads(row[0])) if row else None

    def display_name(self, model: str) -> str:
        """Return the display name of a model, "" for an unknown one: faults are matched against it."""
        query = "SELECT resource FROM versions WHERE model = ? ORDER BY version LIMIT 1"
        with self._lock:
            row = self._db.execute(query, (model.partition("@")[0],)).fetchone()
        return str(json.loads(row[0])["displayName"]) if row else ""

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _next_number(self, key: tuple[str, str, str]) -> int:
        """Return the number of a new version; those of deleted ones are not used again."""
        row = self._db.execute(f"SELECT last FROM numbers WHERE {_OF_MODEL}", key).fetchone()  # noqa: S608
        number = (row[0] if row else 0) + 1
        self._db.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?, ?, ?)", (*key, number))
        return int(number)

    def _versions(self, key: tuple[str, str, str]) -> Sequence[tuple[int, str]]:
        query = f"SELECT version, resource FROM versions WHERE {_OF_MODEL} ORDER BY version"  # noqa: S608
        return self._db.execute(query, key).fetchall()

    def _aliases(self, key: tuple[str, str, str], number: int) -> list[str]:
        query = f"SELECT alias FROM aliases WHERE {_OF_MODEL} AND version = ? ORDER BY alias"  # noqa: S608
        return [alias for (alias,) in self._db.execute(query, (*key, number))]

    def _version(self, project: str, region: str, model: str) -> tuple[tuple[str, str, str], int]:
        """Return the key of a model and the number of the version that `@` selects; without it, the default one."""
        model, _, which = model.partition("@")
        key = (project_number(project), region, model)
        query = f"SELECT version FROM aliases WHERE {_OF_MODEL} AND alias = ?"  # noqa: S608
        row = self._db.execute(query, (*key, which or _DEFAULT)).fetchone()
        number = int(which) if is_number(which) else row[0] if row else 0
        if number not in dict(self._versions(key)):
            shown = f"{model}@{which}" if which else model
            raise not_found(f'Model "projects/{project}/locations/{region}/models/{shown[:200]}"')
        return key, number

    def _merge(self, key: tuple[str, str, str], number: int, aliases: Sequence[str]) -> None:
        for alias in aliases:
            if alias == f"-{_DEFAULT}":
                raise invalid([("version_aliases", "The alias default cannot be removed, only moved.")])
            if alias.startswith("-"):
                query = f"DELETE FROM aliases WHERE {_OF_MODEL} AND alias = ? AND version = ?"  # noqa: S608
                self._db.execute(query, (*key, alias[1:], number))
            else:
                self._db.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?, ?, ?, ?)", (*key, alias, number))

    def _resource(self, key: tuple[str, str, str], number: int, text: str, name: str) -> dict[str, Any]:
        aliases = self._aliases(key, number)
        return {"name": name, "versionId": str(number), "versionAliases": aliases, **json.loads(text)}

    def _deleted(self, key: tuple[str, str, str]) -> dict[str, Any]:
        place = f"projects/{key[0]}/locations/{key[1]}/operations"
        return self._operation(place, "Delete", {"@type": "type.googleapis.com/google.protobuf.Empty"})

    def _operation(self, place: str, what: str, response: Mapping[str, Any]) -> dict[str, Any]:
        """Record an operation, and return it as it is at first: not completed."""
        number, location = self._new_id(), f"{'/'.join(place.split('/')[:4])}/"
        metadata = {"@type": f"{_PREFIX}{what}OperationMetadata"}
        begun = {"name": f"{place}/{number}", "metadata": metadata}
        done = {**begun, "done": True, "response": dict(response)}
        self._db.execute("INSERT INTO operations VALUES (?, ?, ?)", (number, location, json.dumps(done)))
        return begun


def _name(key: tuple[str, str, str]) -> str:
    project, region, model = key
    return f"projects/{project}/locations/{region}/models/{model}"


def _unless(holds: object, field: str, text: str) -> Problems:
    return [] if holds else [(field, text)]


def _alias_problems(aliases: Sequence[str], field: str) -> Problems:
    return [(field, f"Not an alias: {each[:150]!r}.") for each in aliases if not _ALIAS.fullmatch(each)]


def _page(resources: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    text, order = query.get("filter", ""), query.get("orderBy", "")
    found = listing.read_filter(text, "Model")
    chosen = [
        each
        for each in resources
        if listing.matches_filter(found, lambda one, e=each: listing.matches(one, e, "Model"))  # type: ignore[misc]
    ]
    for field in reversed([each.split() for each in order.split(",") if each.strip()]):
        name = {"display_name": "displayName", "create_time": "createTime", "update_time": "updateTime"}.get(field[0])
        if name is None or field[1:] not in ([], ["asc"], ["desc"]):
            raise invalid([("order_by", f"Cannot order by {' '.join(field)!r}.")])
        chosen.sort(key=lambda each, name=name: str(each[name]), reverse=field[1:] == ["desc"])  # type: ignore[misc]
    size, last = listing.page_size(query.get("pageSize")), listing.read_page_token(query.get("pageToken", ""), text)
    start = int(last[0]) if last else 0
    mask = query.get("readMask", "")
    shown = [listing.apply_read_mask(each, mask, "Model") for each in chosen[start : start + size]]
    token = listing.page_token(text, [start + size]) if len(chosen) > start + size else ""
    return {**({"models": shown} if shown else {}), **({"nextPageToken": token} if token else {})}
