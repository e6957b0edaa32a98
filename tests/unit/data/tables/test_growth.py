"""Files that come to a table: each once, in the order of its commits, and all that is no addition is a trap."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pytest

from persia_cli.config.schema.follow import Trap
from persia_cli.data.follow.planner import Plan, TablePlanner
from persia_cli.errors import DataError
from tests.support.tables import (
    add_delete_file,
    catalog_in,
    delta_table,
    iceberg_table,
    present_catalog,
    rewrite_log,
    samples,
    with_deletion_vector,
)

ICEBERG = "iceberg:shop/db.clicks"


class Grown(NamedTuple):
    """A table of one kind, and what tests do with it."""

    path: str
    append: Callable[[int], None]
    overwrite: Callable[[], None]
    compact: Callable[[], None] | None
    folder: Path


@pytest.fixture(params=["iceberg", "delta"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grown:
    if request.param == "iceberg":
        made = iceberg_table(catalog_in(tmp_path, monkeypatch), 1)
        return Grown(
            ICEBERG,
            lambda seed: made.append(samples(50, seed)),
            lambda: made.overwrite(samples(50, 99)),
            None,  # pyiceberg writes no such snapshots
            tmp_path / "warehouse",
        )
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
    place = delta_table(tmp_path / "clicks", 1)
    return Grown(
        f"delta:{place}",
        lambda seed: deltalake.write_deltalake(place, samples(50, seed), mode="append"),
        lambda: deltalake.write_deltalake(place, samples(50, 99), mode="overwrite"),
        lambda: deltalake.DeltaTable(place).optimize.compact(),
        place,
    )


def poll(path: str, cursor: str | None, most: int = 100, skip: Sequence[Trap] = ()) -> Plan:
    """Poll with a new planner, as a resumed run does."""
    return TablePlanner(path, skip).poll(cursor, most)


def test_each_file_comes_once_in_the_order_of_arrival(table: Grown) -> None:
    """Whatever a poll returns at most, and wherever a run is resumed."""
    planner, draw, cursor, found = TablePlanner(table.path), np.random.default_rng(0), None, []
    for seed in range(1, 9):
        files = planner.poll(cursor, int(draw.integers(1, 4))).files
        found += [file.path for file in files]
        cursor = files[-1].cursor if files else cursor
        table.append(seed)
        if seed % 3 == 0:
            planner = TablePlanner(table.path)
    while files := planner.poll(cursor, 2).files:
        found += [file.path for file in files]
        cursor = files[-1].cursor
    assert len(set(found)) == len(found) == 9
    whole = poll(table.path, None).files
    assert [file.path for file in whole] == found
    assert [file.arrived for file in whole] == sorted(file.arrived for file in whole)
    assert all(Path(file.path).is_file() for file in whole)


def test_an_overwritten_table_is_a_trap_or_passed_over(table: Grown) -> None:
    cursor = poll(table.path, None).files[-1].cursor
    table.overwrite()
    with pytest.raises(DataError, match="a training can only add"):
        poll(table.path, cursor)
    planner = TablePlanner(table.path, ["not_append"])
    first = planner.poll(cursor, 10)
    assert [text.partition(":")[0] for text in first.skipped] == ["passed over (not_append)"]
    assert not planner.poll(cursor, 10).skipped
    table.append(5)
    files = planner.poll(cursor, 10).files
    assert files
    assert not planner.poll(files[-1].cursor, 10).files


def test_a_compacted_delta_table_has_no_new_rows(table: Grown) -> None:
    if table.compact is None:
        pytest.skip("pyiceberg writes no compacted snapshots")
    table.append(1)
    cursor = poll(table.path, None).files[-1].cursor
    table.compact()
    assert not poll(table.path, cursor).files
    table.append(2)
    assert len(poll(table.path, cursor).files) == 1


def test_a_snapshot_that_marks_rows_as_deleted_is_a_trap(table: Grown) -> None:
    cursor = poll(table.path, None).files[-1].cursor
    if table.path == ICEBERG:
        add_delete_file(
            present_catalog().load_table("db.clicks"), table.folder, unquote(poll(table.path, None).files[0].path)
        )
    else:
        table.append(1)
        rewrite_log(table.folder, with_deletion_vector)
    with pytest.raises(DataError, match=r"skip=\[deletes\]"):
        poll(table.path, cursor)
    assert poll(table.path, cursor, skip=["deletes"]).files == []


def test_a_lost_cursor_is_a_trap(table: Grown) -> None:
    cursor = poll(table.path, None).files[-1].cursor
    for seed in (1, 2, 3):
        table.append(seed)
    if table.path == ICEBERG:
        loaded = present_catalog().load_table("db.clicks")
        old = [snapshot.snapshot_id for snapshot in loaded.metadata.snapshots[:2]]
        loaded.maintenance.expire_snapshots().by_ids(old).commit()
    else:
        (table.folder / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(DataError, match=r"skip=\[lost_cursor\]"):
        poll(table.path, cursor)
    assert len(poll(table.path, cursor, skip=["lost_cursor"]).files) == 2


def test_a_table_that_was_set_back_or_made_again_is_refused(table: Grown) -> None:
    table.append(1)
    whole = poll(table.path, None)
    if table.path == ICEBERG:
        loaded = present_catalog().load_table("db.clicks")
        loaded.manage_snapshots().rollback_to_snapshot(loaded.metadata.snapshots[0].snapshot_id).commit()
        sentence = "was set back"
    else:
        (table.folder / "_delta_log" / f"{1:020}.json").unlink()
        sentence = "was made again"
    with pytest.raises(DataError, match=sentence):
        poll(table.path, whole.files[-1].cursor, skip=["lost_cursor", "not_append"])


def test_an_expired_cursor_of_iceberg_is_a_trap_and_delta_needs_only_what_follows(table: Grown) -> None:
    cursor = poll(table.path, None).files[-1].cursor
    for seed in (1, 2):
        table.append(seed)
    if table.path == ICEBERG:
        loaded = present_catalog().load_table("db.clicks")
        loaded.maintenance.expire_snapshots().by_id(loaded.metadata.snapshots[0].snapshot_id).commit()
        with pytest.raises(DataError, match="there is no snapshot"):
            poll(table.path, cursor)
    else:
        (table.folder / "_delta_log" / f"{0:020}.json").unlink()
    assert len(poll(table.path, cursor, skip=["lost_cursor"]).files) == 2


@pytest.mark.parametrize("cursor", ["part-0001.parquet", "all 1"])
def test_the_cursor_of_other_data_is_refused(table: Grown, cursor: str) -> None:
    with pytest.raises(DataError, match="no position in a table"):
        poll(table.path, cursor)


def test_a_table_at_one_snapshot_is_not_followed(table: Grown) -> None:
    with pytest.raises(DataError, match="does not grow"):
        TablePlanner(f"{table.path}@1")


def test_a_poll_of_a_thousand_new_files_takes_less_than_a_second(table: Grown) -> None:
    cursor = poll(table.path, None).files[-1].cursor
    if table.path == ICEBERG:
        loaded = present_catalog().load_table("db.clicks")
        [source] = (table.folder / "db" / "clicks" / "data").glob("*.parquet")
        links = [source.with_name(f"more-{number:04}.parquet") for number in range(1000)]
        for link in links:
            link.hardlink_to(source)
        loaded.add_files(list(map(str, links)), check_duplicate_files=False)
    else:
        [source] = (table.folder / "_delta_log").glob("*.json")
        [action] = (line for line in map(json.loads, source.read_text().splitlines()) if "add" in line)
        adds = [json.dumps({"add": action["add"] | {"path": f"more-{number}.parquet"}}) for number in range(1000)]
        source.with_name(f"{1:020}.json").write_text("\n".join(adds))
    planner = TablePlanner(table.path)
    for most, taken in ((1000, 1000), (10, 10)):
        before = time.process_time()
        plan = planner.poll(cursor, most)
        assert time.process_time() - before < 1.0
        assert len(plan.files) == taken
