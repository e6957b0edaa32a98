"""The Criteo recipes: every value by its definition, damaged input, and the real rows."""

import gzip
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError
from tests.support.prepared import dataset_of, prepare

COLUMNS = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
GOOD = b"\t".join([b"1", b"", b"-2", *[b"7"] * 11, b"", b"68fd1e64", b"FFFFFFFF", *[b"00000001"] * 23])


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def changed(column: str, value: bytes) -> bytes:
    """Return the good line with one value of another kind."""
    values = GOOD.split(b"\t")
    values[COLUMNS.index(column)] = value
    return b"\t".join(values)


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """A folder of three days."""
    folder = tmp_path / "days"
    folder.mkdir()
    write(folder / "day_10", GOOD, GOOD, GOOD)
    write(folder / "day_9", GOOD)
    (folder / "day_2.gz").write_bytes(gzip.compress(GOOD + b"\n" + GOOD + b"\n"))
    (folder / ".hidden").write_bytes(b"?")
    return folder


@pytest.mark.parametrize("recipe", ["criteo", "criteo_1tb"])
def test_values_are_those_of_the_readme(recipe: str, tmp_path: Path) -> None:
    source = write(tmp_path / "train.txt", GOOD, changed("label", b"0") + b"\r")
    report = prepare(recipe, source, tmp_path / "out")
    assert (report.rows, report.bad_rows, report.files) == (2, 0, (tmp_path / "out" / "train-0000.parquet",))
    table = pq.read_table(report.files[0])
    assert table.column_names == COLUMNS
    assert [str(kind) for kind in table.schema.types] == ["int8"] + ["float"] * 13 + ["uint64"] * 26
    row = table.slice(0, 1).to_pylist()[0]
    assert (row["label"], row["I1"], row["I2"]) == (1, 0.0, 0.0)
    assert row["I3"] == pytest.approx(math.log(8), rel=1e-6)
    assert (row["C1"], row["C2"], row["C3"], row["C4"]) == (None, 0x68FD1E64, 0xFFFFFFFF, 1)
    assert table.column("label").to_pylist() == [1, 0]


@pytest.mark.parametrize("recipe", ["criteo", "criteo_1tb"])
def test_the_data_set_is_described_as_the_shipped_configuration_does(recipe: str, days: Path, tmp_path: Path) -> None:
    made = dataset_of(prepare(recipe, days, tmp_path / "out").dataset)
    shipped = compose_run([f"dataset={recipe}"]).dataset
    own = {"path", "generator"} | ({"split"} if recipe == "criteo_1tb" else set())
    assert made.model_dump(exclude=own) == shipped.model_dump(exclude=own)


def test_the_last_day_evaluates(days: Path, tmp_path: Path) -> None:
    report = prepare("criteo_1tb", days, tmp_path / "out")
    assert [path.name for path in report.files] == ["day_2-0000.parquet", "day_9-0000.parquet", "day_10-0000.parquet"]
    facts = inspect(dataset_of(report.dataset))
    assert (facts.train_rows, facts.eval_rows) == (3, 3)


def test_the_shipped_split_by_day_takes_every_day_once(tmp_path: Path) -> None:
    rows = pa.table({"label": [0], **{name: [0.0] for name in COLUMNS[1:14]}, **{name: [1] for name in COLUMNS[14:]}})
    for day in range(24):
        pq.write_table(rows, tmp_path / f"day_{day}-0000.parquet")
    facts = inspect(compose_run(["conf=criteo_1tb", f"dataset.path='{tmp_path}'"]).dataset)
    assert (facts.train_rows, facts.eval_rows, facts.unused_rows) == (23, 1, 0)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "is a folder without files"),
        (["day_0.gz", "day_0.txt"], "equal up to their first dot"),
        (None, "does not exist; give the unpacked train.txt"),
    ],
)
def test_sources_that_will_not_do(tmp_path: Path, names: list[str] | None, text: str) -> None:
    source = tmp_path / "source"
    if names is not None:
        source.mkdir()
        for name in names:
            write(source / name, GOOD)
    with pytest.raises(DataError, match=text):
        prepare("criteo", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_real_rows(criteo_rows: Path, real_data: Path) -> None:
    [file] = criteo_rows.glob("*.parquet")
    table = pq.read_table(file)
    assert table.num_rows == 45_930
    labels = table.column("label").to_numpy()
    assert round(float(labels.mean()), 3) == 0.239
    distinct = sum(len(table.column(name).drop_null().unique()) for name in COLUMNS[14:])
    some_missing = sum(table.column(name).null_count > 0 for name in COLUMNS[14:])
    assert distinct + some_missing == 140_315
    with gzip.open(real_data / "criteo" / "criteo_kaggle_mix.tsv.gz", "rt") as text:
        for number, line in enumerate(text):
            if number % 1000 == 0:
                given = dict(zip(COLUMNS, line.rstrip("\n").split("\t"), strict=True))
                made = table.slice(number, 1).to_pylist()[0]
                assert made["label"] == int(given["label"])
                for name in COLUMNS[1:14]:
                    assert made[name] == np.log1p(np.float32(max(int(given[name] or 0), 0)))
                for name in COLUMNS[14:]:
                    assert made[name] == (int(given[name], 16) if given[name] else None)
