"""A sentence reports values that are valid separately and make no sense together, and names both."""

from collections.abc import Callable

import pytest

Told = Callable[..., list[str]]
HOURS = "dataset.sparse=[education, {name: hours, column: raw_hours_per_week, "


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["optimizer.dense={kind: adamw, lr: 0.1, weight_decay: 11}"],
            "optimizer.dense: weight_decay=11 times lr=0.1 is above 1, so a step would subtract more from a weight "
            "than all of it; lower one of them",
        ),
        (
            ["optimizer.embedding={kind: sgd, lr: 2, weight_decay: 0.6}"],
            "optimizer.embedding: weight_decay=0.6 times lr=2 is above 1, so a step would subtract more from a weight "
            "than all of it; lower one of them",
        ),
        (
            ["optimizer.embedding={kind: sgd, lr: 0.1, l2: 11}"],
            "optimizer.embedding: l2=11 times lr=0.1 is above 1, so a step would subtract more from a weight than all "
            "of it; lower one of them",
        ),
        (
            ["model.hidden=[]", "model.norm=batch"],
            "model.norm=batch is about hidden layers, and model.hidden has none; give layers, or leave model.norm out",
        ),
        (
            ["model=dlrm", "model.bottom=[]", "model.top=[]", "model.dropout=0.5"],
            "model.dropout=0.5 is about hidden layers, and model.bottom and model.top have none; give layers, "
            "or leave model.dropout out",
        ),
        (
            [HOURS + "buckets: 5, ids: text}]"],
            "dataset.sparse[1]: the ids of hours are its buckets, and no text is hashed; leave out ids: text",
        ),
        (
            ["dataset.labels=[{name: label, positive: []}]"],
            "dataset.labels[0]: label label would be 0 in every row: positive names no value; give at least one",
        ),
        (
            ["dataset=synthetic", "dataset.generator.dense=0", "dataset.generator.cardinalities=[]"],
            "dataset: generated samples need dense features or cardinalities of sparse ones",
        ),
        (
            ["dataset.csv={delimiter: ';', quote: ';'}"],
            "dataset.csv: delimiter and quote are the same character; give one of them another, or quote: null",
        ),
    ],
)
def test_it_is_reported(mistakes: Told, words: list[str], sentence: str) -> None:
    assert mistakes("conf=adult_income", *words) == [sentence]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (HOURS + "buckets: 1}]", "sparse[1].buckets=1: expected a whole number of at least 2 or a list of numbers"),
        (HOURS + "buckets: []}]", "sparse[1].buckets=[]: expected a whole number of at least 2 or a list of numbers"),
        (
            HOURS + "buckets: 1000000}]",
            "sparse[1].buckets=1000000: expected a whole number of at least 2 and at most 65",
        ),
        (HOURS + "buckets: [true, 2]}]", "sparse[1].buckets[0]=true: expected a number"),
        ("dataset.dense=[{name: age, transform: piecewise, bins: [true, 2]}]", "dense[0].bins[0]=true: expected a num"),
        ("dataset.labels=[{name: label, at_least: true}]", "labels[0].at_least=true: expected a number or null"),
        ("dataset.csv.delimiter=;;", "csv.delimiter=;;: expected one character or the word tab or null"),
        ("dataset.csv.quote=ab", "csv.quote=ab: expected one character or null"),
        ("dataset.split={kind: files, train: []}", "split.train=[]: expected a list of texts, not empty"),
        (
            "model.output_bias=[1e39]",
            "model.output_bias[0]=1e+39: expected a number of at least -1e+30 and at most 1e+30",
        ),
        ("model.dropout=[0.1,2]", "model.dropout[1]=2: expected a number of at least 0 and below 1"),
        (
            "model={kind: masknet, dim: 4, blocks: [4], reduction: 1e6}",
            "model.reduction=1000000.0: expected a number a",
        ),
    ],
)
def test_an_impossible_value_is_reported_once(mistakes: Told, word: str, sentence: str) -> None:
    [told] = mistakes("conf=adult_income", word)
    assert told.removeprefix("dataset.").startswith(sentence)
