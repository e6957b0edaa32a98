"""Every network has the accuracy of its plain-torch twin, on real data."""

from pathlib import Path

import pytest

from tests.accuracy.twins import (
    ON_CRITEO,
    ON_MOVIELENS,
    Samples,
    compare,
    criteo_words,
    movielens_samples,
    movielens_words,
    read_criteo,
    read_movielens,
)

SEEDS = range(3)
APART = 0.002
"""Maximum difference between the mean AUC of persia and of the twin."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def criteo(real_data: Path) -> Samples:
    return read_criteo(real_data / "criteo" / "criteo_kaggle_mix.tsv.gz")


@pytest.mark.parametrize("model", ON_CRITEO)
def test_a_network_on_criteo_rows(model: str, criteo: Samples, criteo_rows: Path, tmp_path: Path) -> None:
    found = compare(model, criteo_words(criteo_rows), criteo, SEEDS, tmp_path)
    assert abs(found.difference) <= APART, found


@pytest.mark.parametrize("model", ON_MOVIELENS)
def test_a_network_on_sequences_of_films(model: str, real_data: Path, tmp_path: Path) -> None:
    films = read_movielens(real_data / "ml-100k")
    found = compare(model, movielens_words(films, tmp_path), movielens_samples(films), SEEDS, tmp_path / "runs")
    assert abs(found.difference) <= APART, found
