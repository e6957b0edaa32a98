"""Versions that a server prepares from base and deltas are the full exports, and what cannot be right is refused."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.errors import PersiaError
from persia_cli.publish.version import read_version
from persia_cli.serving.description import NETWORK, ROWS, Form, Missing, note_of
from persia_cli.serving.following import KEPT, VALUES, VERSIONS, Follower, folder_of
from persia_cli.serving.overlay import MIN_ROWS
from persia_cli.serving.predictor import Predictor
from tests.support.published import Publication, change_version
from tests.support.small_model import DIM

ROWS_FILE = f"{ROWS}/0.parquet"


def logits_of(predictor: Predictor, seed: int) -> np.ndarray:
    """Return the logits of random samples, which the seed selects."""
    draw = np.random.default_rng(seed)
    columns = {
        "user": draw.integers(0, 70, 50), "item": draw.integers(0, 70, 50),
        "words": [["lamp"] * int(count) for count in draw.integers(0, 3, 50)],
        "price": draw.standard_normal(50).astype(np.float32),
    }  # fmt: skip
    return predictor.predict(predictor.fields.batch(columns)).logits


def prepared(follower: Follower, version: int) -> Predictor:
    """Return a prepared version, as a worker opens it."""
    return Predictor.open(folder_of(follower._work, follower.prepare(version).number), follower._missing)


def require_export(publication: Publication, follower: Follower, version: int, seed: int) -> None:
    found = prepared(follower, version)
    assert (found.description.version, found.description.step) == (version, 10 * version)
    full = Predictor.open(publication.exports[version], follower._missing)
    np.testing.assert_array_equal(logits_of(found, seed), logits_of(full, seed))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("form", "missing"), [("float32", "init"), ("int8", "zeros")])
def test_base_and_deltas_are_the_full_export_in_any_order(
    tmp_path: Path, seed: int, form: Form, missing: Missing
) -> None:
    """With deletions, new bases, rollbacks, and followers that start in between."""
    publication, draw = Publication(tmp_path, form=form), np.random.default_rng(seed)
    publication.draw = np.random.default_rng(100 + seed)
    publication.publish_base()
    follower = Follower(publication.folder, tmp_path / "work", missing)
    for turn in range(25):
        chance = draw.random()
        if chance < 0.15:
            publication.publish_base()
        elif chance < 0.7:
            publication.publish_delta(publication.random_changes(int(draw.integers(0, 30))))
        if chance > 0.9:
            follower = Follower(publication.folder, tmp_path / f"work-{turn}", missing)
        newest = publication.version
        require_export(
            publication, follower, newest if draw.random() < 0.6 else int(draw.integers(1, newest + 1)), turn
        )


def test_published_versions_stay_prepared_and_replaced_rows_take_no_space(tmp_path: Path) -> None:
    publication, work = Publication(tmp_path), tmp_path / "work"
    publication.publish_base()
    follower = Follower(publication.folder, work, "zeros")
    mapped: set[str] = set()
    for turn in range(12):
        publication.publish_delta({"user": dict(publication.rows(range(100, 100 + MIN_ROWS // 2)))})
        require_export(publication, follower, publication.version, turn)
        [values] = (work / VALUES).iterdir()
        assert values.stat().st_size <= 2 * MIN_ROWS * 4 * DIM
        mapped.add(values.name)
    assert 2 < len(mapped) < 8
    # Removed files stay mapped as long as a version in use reads them.
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(work) in line]
    assert 0 < len(maps) <= 10
    for path in publication.folder.glob("delta-*/rows/*"):
        path.unlink()
    require_export(publication, follower, 2, 2)
    publication.publish_base()
    follower.prepare(publication.version)
    assert len(list((work / VERSIONS).iterdir())) == publication.version - 1 > KEPT, "all but the first base"
    for version in range(2, publication.version):
        shutil.rmtree(publication.folder / f"delta-{version:08d}")
    publication.publish_base()
    follower.prepare(publication.version)
    assert len(list((work / VERSIONS).iterdir())) == KEPT


def test_what_a_killed_follower_has_left_is_replaced(tmp_path: Path) -> None:
    publication, work = Publication(tmp_path), tmp_path / "work"
    publication.publish_base()
    killed = Follower(publication.folder, work, "zeros")
    served = killed.prepare(1).number
    publication.publish_delta(publication.random_changes(20))
    (folder_of(work, killed.prepare(2).number) / NETWORK).unlink()
    require_export(publication, Follower(publication.folder, work, "zeros", last=served), 2, 0)


def replace_rows(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change the table of rows of a delta, with right checksums."""
    table = pq.read_table(folder / ROWS_FILE)
    pq.write_table(change(table), folder / ROWS_FILE)
    files = [note_of(folder, file.path) for file in read_version(folder).files]
    change_version(folder, files=files)


def truncate(folder: Path) -> None:
    os.truncate(folder / ROWS_FILE, (folder / ROWS_FILE).stat().st_size - 9)


def alter(folder: Path) -> None:
    content = bytearray((folder / ROWS_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / ROWS_FILE).write_bytes(content)


def without(path: str) -> Callable[[Path], None]:
    """Return what makes a description list no such file."""

    def change(folder: Path) -> None:
        change_version(folder, files=[file for file in read_version(folder).files if file.path != path])

    return change


def other_weights(folder: Path) -> None:
    import onnx

    from tests.support.small_model import network

    onnx.save(network(99), folder / NETWORK)
    change_version(folder, files=[note_of(folder, file.path) for file in read_version(folder).files])


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate, "0.parquet is not the file that was written"),
    "altered": (alter, "0.parquet is not the file that was written"),
    "removed": (lambda folder: (folder / ROWS_FILE).unlink(), "0.parquet is missing"),
    "rows not vouched for": (without(ROWS_FILE), "vouches for no rows/0.parquet"),
    "network not vouched for": (without(NETWORK), "vouches for no dense.onnx"),
    "another parent": (lambda folder: change_version(folder, parent=1), "does not predict .* of its golden samples"),
    "other weights": (other_weights, "does not predict click_probability of its golden samples"),
    "another table": (
        lambda folder: replace_rows(
            folder, lambda rows: rows.set_column(0, "table", pa.array(["shop"] * len(rows)))
        ),
        "has no changed rows",
    ),
    "no table": (lambda folder: replace_rows(folder, lambda rows: rows.drop(["id"])), "has no changed rows"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_delta_is_refused_and_later_ones_are_not(tmp_path: Path, damage: str) -> None:
    act, sentence = DAMAGES[damage]
    publication = Publication(tmp_path)
    publication.publish_base()
    for _ in range(3):
        publication.publish_delta(publication.random_changes(30))
    follower = Follower(publication.folder, tmp_path / "work", "zeros")
    require_export(publication, follower, 3, 0)
    before = logits_of(prepared(follower, 3), 1)
    delta = publication.folder / "delta-00000004"
    shutil.copytree(delta, tmp_path / "whole")
    act(delta)
    for _ in range(2):
        with pytest.raises(PersiaError, match=sentence):
            follower.prepare(4)
    np.testing.assert_array_equal(logits_of(prepared(follower, 3), 1), before)
    publication.publish_base()
    require_export(publication, follower, 5, 0)
    shutil.rmtree(delta)
    shutil.copytree(tmp_path / "whole", delta)
    require_export(publication, follower, 4, 0)
