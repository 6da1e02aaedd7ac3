"""The resources of Cloud Build and Artifact Registry, in the data folder: one row for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import data_folder
from ..vertex.errors import VertexApiError

_VERSION = 1
_SCHEMA = "CREATE TABLE resources (name TEXT PRIMARY KEY, parent TEXT NOT NULL, body TEXT NOT NULL);"

Body = dict[str, Any]


class StoredResources:
    """StoredResources by their names, such as "projects/p/locations/r/repositories/podlift". Belongs to one thread."""

    def __init__(self, folder: Path) -> None:
        data_folder.make_subfolder(folder)
        self._db = data_folder.open_database(folder / "builds.sqlite", _SCHEMA, _VERSION, any_thread=True)

    def get(self, name: str) -> Body | None:
        row = self._db.execute("SELECT body FROM resources WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else None

    def existing(self, name: str) -> Body:
        resource = self.get(name)
        if resource is None:
            raise VertexApiError(404, "Requested entity was not found.")
        return resource

    def put(self, name: str, body: Mapping[str, Any]) -> None:
        row = (name, name.rpartition("/")[0], json.dumps(body))
        self._db.execute("INSERT OR REPLACE INTO resources VALUES (?, ?, ?)", row)

    def below(self, parent: str) -> Iterator[Body]:
        """Yield the resources of a collection, the newest first."""
        query = "SELECT body FROM resources WHERE parent = ? ORDER BY rowid DESC"
        yield from (json.loads(row[0]) for row in self._db.execute(query, (parent,)).fetchall())

    def clear(self) -> None:
        self._db.execute("DELETE FROM resources")

    def close(self) -> None:
        self._db.close()
