"""A published folder that is written without training, and the full export of each of its versions.

A delta has the rows that the test names, and the full export has all rows of its version in plain files. So the two
are made by different code, and a server that follows has the scores of the exports.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.publish.version import (
    FORMAT_VERSION,
    VERSION,
    Version,
    version_text,
    write_served,
)
from persia_cli.serving.description import GOLDEN, MODEL, NETWORK, ROWS, Form, note_of
from persia_cli.serving.row_writer import TableRules, planned_group, writing_group
from tests import naive
from tests.support.made_up_model import describe_model
from tests.support.small_model import COLUMNS, DIM, FIELDS, LABELS, NAME, network

TABLES = ("user", "item", "words")
SALTS = {name: 11 + number for number, name in enumerate(TABLES)}
FIRST_OTHER = 10**6
"""Least id of users that are in no full export."""
Row = np.ndarray | None
"""The row of an id; None if the id has lost its row."""


class Publication:
    """A published folder, and what its versions are."""

    def __init__(self, place: Path, users: Sequence[int] = range(40), form: Form = "float32") -> None:
        """`place` is for the published folder and the exports."""
        self.folder, self._exports, self._form = place / "published", place / "exports", form
        self.draw = np.random.default_rng(3)
        self.tables: dict[str, dict[int, np.ndarray]] = {
            "user": self.rows(users), "item": self.rows(range(20)), "words": self.rows(range(5)),
        }  # fmt: skip
        self.version, self.exports = 0, dict[int, Path]()

    def rows(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        """Return random rows for ids."""
        values = self.draw.standard_normal((len(ids), DIM)).astype(np.float32)
        return dict(zip(ids, values, strict=True))

    def publish_base(self, name: str = NAME) -> int:
        """Publish all rows; returns the version."""
        self.version += 1
        export = self._export(name)
        folder = self.folder / f"base-{self.version:08d}"
        shutil.copytree(export, folder)
        self._seal(folder, None, [MODEL])
        return self.version

    def publish_delta(self, changed: Mapping[str, Mapping[int, Row]], others: int = 0, of: int = 10**6) -> int:
        """Publish changed rows, and other dense weights; returns the version.

        It has as many rows of `others`: users that are in no full export, `of` so many.
        """
        parent, self.version = self.version, self.version + 1
        for table, rows in changed.items():
            for id_, row in rows.items():
                if row is None:
                    self.tables[table].pop(id_, None)
                else:
                    self.tables[table][id_] = row
        folder = self.folder / f"delta-{self.version:08d}"
        (folder / ROWS).mkdir(parents=True)
        own = changes_table(changed)
        pq.write_table(pa.concat_tables([own, self._others(others, of).cast(own.schema)]), folder / ROWS / "0.parquet")
        export = self._export(NAME)
        for path in (NETWORK, GOLDEN):
            shutil.copyfile(export / path, folder / path)
        self._seal(folder, parent, [f"{ROWS}/0.parquet", NETWORK, GOLDEN])
        return self.version

    def _others(self, count: int, of: int) -> Any:
        ids = FIRST_OTHER + np.sort(self.draw.choice(of, count, replace=False))
        values = self.draw.standard_normal(count * DIM).astype(np.float32)
        return pa.table(
            {
                "table": pa.repeat(pa.scalar("user"), count).dictionary_encode(),
                "id": pa.array(ids, pa.uint64()),
                "deleted": pa.repeat(pa.scalar(False), count),
                "embedding": pa.FixedSizeListArray.from_arrays(pa.array(values), DIM),
            }
        )

    def random_changes(self, count: int, ids: int = 60) -> dict[str, dict[int, Row]]:
        """Return changes of up to `count` random ids of each table; a quarter are deletions."""
        return {
            table: {
                int(id_): None if self.draw.random() < 0.25 else row
                for id_, row in self.rows(sorted(set(self.draw.integers(0, ids, count).tolist()))).items()
            }
            for table in TABLES
        }

    def _export(self, name: str) -> Path:
        folder = self.exports[self.version] = self._exports / str(self.version)
        (folder / ROWS).mkdir(parents=True)
        rules = [
            TableRules(table, len(rows), SALTS[table], 0.05, 2**24, 1, 0, 0) for table, rows in self.tables.items()
        ]
        group = planned_group(0, DIM, self._form, "float32", rules)
        with writing_group(folder, group) as writer:
            for number, (table, rows) in enumerate(self.tables.items()):
                keys = np.array(naive.keys_of(SALTS[table], list(rows)), np.uint64)
                order = np.argsort(keys)
                writer.add(number, keys[order], np.array(list(rows.values()), np.float32).reshape(-1, DIM)[order])
        onnx.save(network(self.version), folder / NETWORK)
        return describe_model(
            folder, group, FIELDS, COLUMNS, LABELS, name=name, step=10 * self.version, samples=self.version
        )  # fmt: skip

    def _seal(self, folder: Path, parent: int | None, paths: list[str]) -> None:
        version = Version(
            FORMAT_VERSION, self.version, parent, "run", "1", 10 * self.version, self.version, 1.5,
            [note_of(folder, path) for path in paths],
        )  # fmt: skip
        (folder / VERSION).write_bytes(version_text(version))

    def announce(self) -> None:
        """Make the newest version the current one."""
        write_served(self.folder, self.version)


def changes_table(changed: Mapping[str, Mapping[int, Row]]) -> Any:
    """Return changed rows as a delta has them."""
    entries = [
        (naive.keys_of(SALTS[table], [id_])[0], table, id_, row)
        for table, rows in changed.items()
        for id_, row in rows.items()
    ]
    entries.sort(key=lambda entry: (TABLES.index(entry[1]), entry[0]))
    values = [None if row is None else row.tolist() for *_, row in entries]
    return pa.table(
        {
            "table": pa.array([table for _, table, *_ in entries], pa.string()).dictionary_encode(),
            "id": pa.array([id_ for _, _, id_, _ in entries], pa.uint64()),
            "deleted": pa.array([row is None for *_, row in entries], pa.bool_()),
            "embedding": pa.array(values, pa.list_(pa.float32(), DIM)),
        }
    )


def change_version(folder: Path, **known: Any) -> None:
    """Change the description of a version, with a right checksum."""
    from persia_cli.publish.version import read_version

    version = msgspec.structs.replace(read_version(folder), **known)
    (folder / VERSION).write_bytes(version_text(version))
