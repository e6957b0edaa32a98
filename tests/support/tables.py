"""Made-up tables of Iceberg and Delta on the disk of a test, and their files as a plain folder."""

import json
import os
import struct
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zmq.utils import z85

CATALOG = "shop"
WORKERS = 2


def start_libraries(folder: Path) -> None:
    """Make pyiceberg and deltalake start threads that they keep, so that no test seems to have left them."""
    if find_spec("deltalake"):
        import deltalake

        deltalake.write_deltalake(folder, samples(10), partition_by=["part"])
        deltalake.DeltaTable(folder).to_pyarrow_table()
    if find_spec("pyiceberg"):
        from pyiceberg.utils.concurrent import ExecutorFactory

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYICEBERG_MAX_WORKERS", str(WORKERS))
            pool = ExecutorFactory.get_or_create()
        together = Barrier(WORKERS)
        list(pool.map(lambda _: together.wait(10.0), range(WORKERS)))


def samples(rows: int, seed: int = 0) -> Any:
    """Return rows of two ids, a number, a label and the place in time, as an Arrow table."""
    draw = np.random.default_rng(seed)
    user, item = draw.integers(0, 50, rows), draw.integers(0, 30, rows)
    columns = {
        "user": user,
        "item": item,
        "price": draw.normal(size=rows),
        "clicked": ((user + item + draw.integers(0, 3, rows)) % 2).astype(np.int64),
        "part": draw.integers(0, 5, rows),
    }
    return pa.table(columns)


def catalog_in(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """Return a catalog in a SQLite file with an empty namespace `db`, which pyiceberg finds by its configuration."""
    pytest.importorskip("pyiceberg", reason="needs the extra iceberg")
    pytest.importorskip("sqlalchemy", reason="needs pyiceberg's catalogs in SQL")
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    patch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__URI", f"sqlite:///{folder}/catalog.db")
    patch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__WAREHOUSE", str(warehouse))
    catalog = present_catalog()
    catalog.create_namespace("db")
    return catalog


def present_catalog() -> Any:
    """Return the catalog of `catalog_in` as pyiceberg finds it."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    settings: Any = Config().get_catalog_config(CATALOG)
    return load_catalog(CATALOG, **settings)


def rewrite_log(table: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the actions of a Delta table's last commit."""
    commit = max((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        change(action)
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def with_deletion_vector(action: dict[str, Any]) -> None:
    """Mark the first row of each file as deleted, as engines do that merge on read."""
    if "protocol" in action:
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    if "add" in action:
        # A bitmap of 64-bit numbers with one 32-bit bitmap in it, which holds number 0.
        bitmap = struct.pack("<IQIIIHHIH", 1681511377, 1, 0, 12346, 1, 0, 0, 16, 0)
        text = z85.encode(bitmap + bytes(-len(bitmap) % 4)).decode()
        vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap), "cardinality": 1}
        action["add"]["deletionVector"] = vector


def copied(files: Iterable[str], source: Path, target: Path) -> Path:
    """Link files below a folder into another one under the same names; return that."""
    for file in files:
        link = target / Path(file).relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, link)
    return target


def iceberg_table(catalog: Any, appends: int = 3, name: str = "db.clicks") -> Any:
    table = catalog.create_table(name, schema=samples(1).schema)
    for number in range(appends):
        table.append(samples(100, number))
    return table


def delta_table(folder: Path, appends: int = 3, **options: Any) -> Path:
    from deltalake import write_deltalake

    for number in range(appends):
        write_deltalake(folder, samples(100, number), mode="append", **options)
    return folder


def add_delete_file(table: Any, folder: Path, of: str) -> None:
    """Commit a snapshot with a file of deleted positions, as an engine that merges on read writes it."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest_list,
    )
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary
    from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, SetSnapshotRefUpdate
    from pyiceberg.typedef import Record

    class DeleteWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

    now, number = table.current_snapshot(), 4711
    deletes = folder / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [of], "pos": [0]}), deletes)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=str(deletes),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=deletes.stat().st_size,
    )
    output = table.io.new_output(str(folder / "deletes.avro"))
    with DeleteWriter(table.spec(), table.schema(), output, number, "null") as writer:
        entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
        writer.add_entry(entry)
    manifests = [*now.manifests(table.io), writer.to_manifest_file()]
    output = table.io.new_output(str(folder / "list.avro"))
    with write_manifest_list(2, output, number, now.snapshot_id, now.sequence_number + 1, "null") as manifest_list:
        manifest_list.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=now.snapshot_id,
        sequence_number=now.sequence_number + 1,
        timestamp_ms=now.timestamp_ms + 1,
        manifest_list=str(folder / "list.avro"),
        summary=Summary(Operation.DELETE),
        schema_id=0,
    )
    reference = SetSnapshotRefUpdate(
        snapshot_id=number, parent_snapshot_id=now.snapshot_id, ref_name="main", type="branch"
    )
    table.catalog.commit_table(
        table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (AddSnapshotUpdate(snapshot=snapshot), reference)
    )
