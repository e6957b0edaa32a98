"""Tables as lists of files: at a snapshot, with the samples of a folder, and refused where files are not the rows."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.files import find_files, locate
from persia_cli.data.read.scan import scan
from persia_cli.data.tables.snapshots import at_present, snapshot_of
from persia_cli.errors import DataError
from tests.support.tables import (
    add_delete_file,
    catalog_in,
    copied,
    delta_table,
    iceberg_table,
    rewrite_log,
    samples,
    with_deletion_vector,
)

ICEBERG = "iceberg:shop/db.clicks"
HAS_DELTA = pytest.mark.skipif(importlib.util.find_spec("deltalake") is None, reason="needs the extra delta")


def dataset(path: str, **changes: Any) -> ParquetDataset:
    keys = {"kind": "parquet", "path": path, "labels": ["clicked"], "dense": ["price"], "sparse": ["user", "item"]}
    return ParquetDataset.model_validate(keys | {"split": {"kind": "every", "n": 5}} | changes)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return catalog_in(tmp_path, monkeypatch)


def paths(path: str) -> list[str]:
    return [file.path for file in find_files(locate(path))]


def test_an_iceberg_table_has_the_samples_of_its_folder(catalog: Any, tmp_path: Path) -> None:
    table = iceberg_table(catalog)
    found = scan(dataset(ICEBERG))
    assert found.settled.path == f"{ICEBERG}@{table.current_snapshot().snapshot_id}"
    folder = copied(paths(ICEBERG), tmp_path / "warehouse", tmp_path / "copy")
    assert found.train_data == scan(dataset(str(folder))).train_data
    assert len(found.files) == 3


@HAS_DELTA
def test_a_delta_table_has_the_samples_of_its_folder_with_its_partitions(tmp_path: Path) -> None:
    table = delta_table(tmp_path / "clicks table", partition_by=["part"])
    features = {"sparse": ["user", "item", "part"]}
    found = scan(dataset(f"delta:{table}", **features))
    assert found.settled.path == f"delta:{table}@2"
    assert found.train_data == scan(dataset(str(table), **features)).train_data
    assert len(found.files) > 3


@HAS_DELTA
def test_text_in_the_folders_of_a_delta_table_is_that_of_its_rows(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    rows = samples(4).append_column("shop", pa.array(["a b", "ü=%", "c/d", None]))
    write_deltalake(tmp_path / "t", rows, partition_by=["shop"])
    found = scan(dataset(f"delta:{tmp_path / 't'}", sparse=["user", "shop"], split={"kind": "eval"}))
    assert sorted(str(group.constants["shop"].as_py()) for group in found.groups) == ["None", "a b", "c/d", "ü=%"]


def test_later_snapshots_do_not_change_what_a_path_with_a_snapshot_means(catalog: Any) -> None:
    table = iceberg_table(catalog)
    pinned, before = at_present(ICEBERG), paths(ICEBERG)
    table.append(samples(100, 9))
    assert at_present(pinned) == pinned
    assert paths(pinned) == before != paths(ICEBERG)
    table.overwrite(samples(100, 10))
    assert paths(pinned) == before
    assert len(paths(ICEBERG)) == 1


@HAS_DELTA
def test_later_versions_do_not_change_what_a_path_with_a_version_means(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    place = delta_table(tmp_path / "t")
    pinned, before = at_present(f"delta:{place}"), paths(f"delta:{place}")
    DeltaTable(place).optimize.compact()
    assert paths(pinned) == before
    assert len(paths(f"delta:{place}")) == 1
    DeltaTable(place).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(DataError, match="does not exist any more"):
        scan(dataset(pinned))


def test_the_order_of_arrival_is_that_of_the_snapshots(catalog: Any) -> None:
    table = iceberg_table(catalog, 0)
    added = []
    for number in range(6):
        table.append(samples(10, number))
        snapshot = snapshot_of(ICEBERG)
        assert snapshot is not None
        added.append(snapshot.files[-1])
    assert snapshot.files == tuple(added)
    assert [file.arrived for file in added] == sorted(file.arrived for file in added)


def test_an_expired_snapshot_is_refused(catalog: Any) -> None:
    table = iceberg_table(catalog)
    old = table.metadata.snapshots[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(old).commit()
    with pytest.raises(DataError, match=f"there is no snapshot {old} any more"):
        locate(f"{ICEBERG}@{old}")


def test_deleted_rows_are_refused_since_the_files_have_them(catalog: Any, tmp_path: Path) -> None:
    """pyiceberg writes no delete files, so a manifest gets one by hand."""
    table = iceberg_table(catalog, 1)
    add_delete_file(table, tmp_path / "warehouse", paths(ICEBERG)[0])
    with pytest.raises(DataError, match="has deleted rows at snapshot"):
        locate(ICEBERG)


def test_a_name_that_another_column_had_is_refused(catalog: Any) -> None:
    table = iceberg_table(catalog, 1)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("price")
    with table.update_schema() as update:
        from pyiceberg.types import DoubleType

        update.add_column("price", DoubleType())
    with pytest.raises(DataError, match="2 columns had the name price"):
        locate(ICEBERG)


@HAS_DELTA
def test_a_delta_table_with_mapped_names_is_refused(tmp_path: Path) -> None:
    """deltalake writes no such table, so the log is rewritten."""
    place = delta_table(tmp_path / "t", 1)

    def changed(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            action["metaData"]["configuration"] = {
                "delta.columnMapping.mode": "name",
                "delta.columnMapping.maxColumnId": "9",
            }
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"]):
                names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
                field["metadata"] = names
            action["metaData"]["schemaString"] = json.dumps(schema)

    rewrite_log(place, changed)
    with pytest.raises(DataError, match="maps names of columns"):
        locate(f"delta:{place}")


@HAS_DELTA
def test_a_delta_table_with_deletion_vectors_is_refused(tmp_path: Path) -> None:
    place = delta_table(tmp_path / "t", 1)
    rewrite_log(place, with_deletion_vector)
    with pytest.raises(DataError, match="has deleted rows"):
        locate(f"delta:{place}")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("iceberg:clicks", "write iceberg:CATALOG/NAMESPACE.TABLE"),
        ("iceberg:shop/db.clicks", "Table does not exist"),
        ("iceberg:shoop/db.clicks", "has no catalog shoop .* did you mean shop"),
    ],
)
def test_tables_that_are_not_there_are_refused(catalog: Any, path: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        locate(path)


@HAS_DELTA
def test_a_folder_without_a_log_is_no_delta_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="deltalake cannot read it"):
        locate(f"delta:{tmp_path}")


def test_a_split_by_files_of_a_table_is_refused(catalog: Any) -> None:
    iceberg_table(catalog)
    with pytest.raises(DataError, match="split by a column"):
        inspect(dataset(ICEBERG, split={"kind": "files", "train": ["a*"], "eval": ["b*"]}))
