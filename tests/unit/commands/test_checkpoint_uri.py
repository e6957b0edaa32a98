"""`persia checkpoint` reads and cleans up checkpoints in an object store as it does those on a disk."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyarrow import fs

from persia_cli.store.checkpoints.manifest import CHECKPOINTS
from tests.support.s3 import SECRET, ObjectStore, object_store
from tests.support.saved_rows import made_up_rows
from tests.unit.checkpoint.made_up import write_sorted

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """pyarrow keeps connections to the store until the process ends."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as server:
        yield server


@pytest.fixture
def run(tmp_path: Path, store: ObjectStore) -> Path:
    """A run with checkpoints of steps 5 and 9 in the store, whose copies are on the disk."""
    rows = made_up_rows(120, 8, 5, ("a", "b"))
    for step, part in ((5, rows.iloc[:100]), (9, rows)):
        write_sorted(tmp_path / f"run-{step}", step, part, 2)
    address = store.uri(tmp_path.name)
    remote, path = fs.FileSystem.from_uri(address)
    for step in (5, 9):
        name = f"step-{step}"
        fs.copy_files(
            str(tmp_path / f"run-{step}" / CHECKPOINTS / name), f"{path}/{name}", fs.LocalFileSystem(), remote
        )
    config = tmp_path / "run-9" / "config.yaml"
    config.write_text(config.read_text().replace("  path: null", f"  path: {address}"))
    assert address in config.read_text()
    return tmp_path / "run-9"


def test_every_command_takes_a_uri(persia, run: Path, tmp_path: Path, store: ObjectStore) -> None:
    local = run / CHECKPOINTS / "step-9"
    uri = store.uri(f"{tmp_path.name}/step-9")
    shown = [json.loads(persia("checkpoint", "show", str(place), "--json").out) for place in (local, uri)]
    assert all(shown[0][key] == shown[1][key] for key in ("step", "rows", "tables", "dense", "files"))
    found = [json.loads(persia("checkpoint", "verify", str(place), "--json").out) for place in (local, uri)]
    flaws = [
        [flaw.replace(side["path"], "") for flaw in side["flaws"]] for side in (f["checkpoints"][0] for f in found)
    ]
    assert flaws[1] == [flaw for flaw in flaws[0] if "metrics.jsonl" not in flaw]
    ended = persia("checkpoint", "diff", store.uri(f"{tmp_path.name}/step-5"), uri, "--json")
    assert [(t["removed"], t["changed"]) for t in json.loads(ended.out)["tables"]] == [(0, 0), (0, 0)]
    assert sum(t["added"] for t in json.loads(ended.out)["tables"]) == 20
    ended = persia("checkpoint", "export", uri, "--table", "a", "-o", "a.parquet")
    assert ended.code == 0, ended.err
    assert len(pd.read_parquet(tmp_path / "a.parquet")) == next(
        t["rows"] for t in shown[0]["tables"] if t["name"] == "a"
    )
    assert SECRET not in ended.err + ended.out


def test_old_ones_go_from_the_store(persia, run: Path, tmp_path: Path, store: ObjectStore) -> None:
    listed = json.loads(persia("checkpoint", "ls", str(run), "--json").out)["checkpoints"]
    assert [each["step"] for each in listed] == [5, 9]
    assert SECRET not in json.dumps(listed)
    ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--yes")
    assert ended.code == 0, ended.err
    remote, path = fs.FileSystem.from_uri(store.uri(tmp_path.name))
    left = {info.path for info in remote.get_file_info(fs.FileSelector(path, recursive=True)) if info.is_file}
    assert left
    assert all("/step-9/" in name for name in left)
