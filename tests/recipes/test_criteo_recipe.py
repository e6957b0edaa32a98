"""The Criteo recipes: every value by its definition, damaged input, and the real rows."""

import gzip
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.prepare.recipe import PrepareOptions, PrepareReport, load_recipe
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError
from tests.support.jobs import evaluation, train
from tests.support.prepared import dataset_of

COLUMNS = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
GOOD = b"\t".join([b"1", b"", b"-2", *[b"7"] * 11, b"", b"68fd1e64", b"FFFFFFFF", *[b"00000001"] * 23])


def prepare(source: Path, output: Path, recipe: str = "criteo", **options: int) -> PrepareReport:
    return load_recipe(recipe).prepare(source, output, PrepareOptions(**options), lambda done, total: None)


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
    report = prepare(source, tmp_path / "out", recipe)
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
    made = dataset_of(prepare(days, tmp_path / "out", recipe).dataset)
    shipped = compose_run([f"dataset={recipe}"]).dataset
    own = {"path", "generator"} | ({"split"} if recipe == "criteo_1tb" else set())
    assert made.model_dump(exclude=own) == shipped.model_dump(exclude=own)


def test_the_last_day_evaluates(days: Path, tmp_path: Path) -> None:
    report = prepare(days, tmp_path / "out", "criteo_1tb")
    assert [path.name for path in report.files] == ["day_2-0000.parquet", "day_9-0000.parquet", "day_10-0000.parquet"]
    facts = inspect(dataset_of(report.dataset))
    assert (facts.train_rows, facts.eval_rows) == (3, 3)


def test_the_shipped_split_by_day_takes_every_day_once(tmp_path: Path) -> None:
    rows = pa.table({"label": [0], **{name: [0.0] for name in COLUMNS[1:14]}, **{name: [1] for name in COLUMNS[14:]}})
    for day in range(24):
        pq.write_table(rows, tmp_path / f"day_{day}-0000.parquet")
    facts = inspect(compose_run(["conf=criteo_1tb", f"dataset.path='{tmp_path}'"]).dataset)
    assert (facts.train_rows, facts.eval_rows, facts.unused_rows) == (23, 1, 0)


def test_row_groups_have_the_size_asked_for(tmp_path: Path) -> None:
    report = prepare(write(tmp_path / "train.txt", *[GOOD] * 10), tmp_path / "out", row_group_rows=4)
    with pq.ParquetFile(report.files[0]) as file:
        assert [file.metadata.row_group(n).num_rows for n in range(3)] == [4, 4, 2]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD[:-20], "38 fields where there are 40 columns"),
        (GOOD + b"\t1", "41 fields where there are 40 columns"),
        (b"", "the line is empty"),
        (changed("label", b"2"), "the label is neither 0 nor 1"),
        (changed("label", b""), "label is missing"),
        (changed("label", b"\xff"), "label is not an integer of at most 18 digits"),
        (changed("I3", b"1.5"), "I3 is not an integer of at most 18 digits"),
        (changed("I13", b"\xe9\xe9"), "I13 is not an integer of at most 18 digits"),
        (changed("I13", b"\0"), "I13 is not an integer of at most 18 digits"),
        (changed("I13", b"1" * 70_000), "I13 is not an integer of at most 18 digits"),
        (changed("C7", b"68fd1e6"), "C7 is not 8 hexadecimal digits"),
        (changed("C7", b"68fd1e6g"), "C7 is not 8 hexadecimal digits"),
        (changed("C26", "äöüß".encode()), "C26 is not 8 hexadecimal digits"),
        (changed("C7", b"0" * (9 << 20)), "the line is too long to be a row"),
    ],
)
def test_damaged_rows_end_the_recipe_unless_allowed(tmp_path: Path, line: bytes, reason: str) -> None:
    source = write(tmp_path / "train.txt", GOOD, line, GOOD)
    with pytest.raises(DataError) as caught:
        prepare(source, tmp_path / "out")
    assert f"train.txt line 2: {reason}" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"]
    report = prepare(source, tmp_path / "out", max_bad_rows=1)
    assert (report.rows, report.bad_rows) == (2, 1)
    [bad] = report.first_bad_rows
    assert (bad.file, bad.line) == ("train.txt", 2)
    assert bad.reason.startswith(reason)
    assert pq.read_table(report.files[0]).num_rows == 2


def test_a_byte_order_mark_and_a_missing_line_end_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n" + GOOD)
    assert prepare(tmp_path / "train.txt", tmp_path / "out").rows == 2


def test_a_row_that_is_wrong_twice_counts_once(tmp_path: Path) -> None:
    values = changed("I1", b"a").replace(b"68fd1e64", b"zz")
    report = prepare(write(tmp_path / "train.txt", values, GOOD), tmp_path / "out", max_bad_rows=1)
    assert (report.rows, report.bad_rows) == (1, 1)


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
        prepare(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_truncated_archive_leaves_nothing(tmp_path: Path) -> None:
    lines = b"".join(changed("C3", b"%08x" % (n * 2654435761 % 2**32)) + b"\n" for n in range(20_000))
    packed = gzip.compress(lines)
    (tmp_path / "train.txt.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"train\.txt\.gz: cannot be read"):
        prepare(tmp_path / "train.txt.gz", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt.gz"]


def test_a_file_without_a_good_row_becomes_none(days: Path, tmp_path: Path) -> None:
    write(days / "LICENSE", b"use it well")
    write(days / "empty")
    report = prepare(days, tmp_path / "out", max_bad_rows=1)
    assert (report.rows, report.bad_rows) == (6, 1)
    assert len(report.files) == len(list((tmp_path / "out").glob("*.parquet"))) == 3


def test_all_bad_rows_of_a_block_are_reported_in_the_order_of_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "train.txt", GOOD, changed("C3", b"x"), changed("label", b"2"), GOOD, changed("I2", b"y"))
    with pytest.raises(DataError) as failure:
        prepare(source, tmp_path / "out")
    lines = str(failure.value).splitlines()
    assert lines[0].startswith("3 rows do not parse, but at most 0 may fail")
    assert [line.split(":")[0].strip() for line in lines[1:]] == [f"train.txt line {number}" for number in (2, 3, 5)]


def test_only_bad_rows_make_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row of the source can be used"):
        prepare(write(tmp_path / "train.txt", b"a", b"b"), tmp_path / "out", max_bad_rows=5)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "file", "rows", "least"),
    [
        ("criteo", "criteo_kaggle_mix.tsv.gz", 45_930, 0.74),
        ("criteo_1tb", "criteo_1tb_day0_first10k.tsv.gz", 10_000, 0.55),
    ],
)
def test_from_the_raw_file_to_an_evaluated_model(
    recipe: str, file: str, rows: int, least: float, real_data: Path, tmp_path: Path
) -> None:
    report = prepare(real_data / "criteo" / file, tmp_path / "out", recipe)
    assert (report.rows, report.bad_rows) == (rows, 0)
    words = [f"conf={recipe}", f"dataset={report.dataset}", "embedding.memory=1GiB", "cluster=embedded", "model=ffnn"]
    result = train([*words, "train.batch_size=256", "train.epochs=1", "checkpoint.at_end=false"], tmp_path / "run")
    assert evaluation(result)["eval_samples"] == rows // 5
    assert evaluation(result)["auc"] > least
