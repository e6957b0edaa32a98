"""Editors check configurations as persia does: what persia takes is in the JSON Schema, what it refuses is not."""

import pytest
import yaml
from jsonschema import Draft202012Validator

from persia_cli.config import offers
from persia_cli.config.compose import compose_run
from persia_cli.config.json_schema import file_schema
from persia_cli.config.record import to_yaml

SCHEMA = file_schema()
FILES = offers.primaries()


def mistakes(text: str) -> list[str]:
    return [error.json_path for error in Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(text))]


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", FILES)
def test_shipped_configurations_fit_as_written_and_as_resolved(name: str) -> None:
    assert mistakes(FILES[name].read_text()) == []
    assert mistakes(to_yaml(compose_run([f"conf={name}"]))) == []


@pytest.mark.parametrize(
    "text",
    [
        "embedding: {memory: 8GiB}",
        "embedding: {memory: 8000000}",
        "dataset: data/shop/dataset.yaml",
        "dataset: {sparse: [user, {name: items, table: item, pooling: mean}]}",
        "dataset: {labels: [{name: stars, at_least: 4}], dense: [age, {name: price, transform: log1p}]}",
        "train: {epochs: '${oc.env:EPOCHS}'}",
        "model: {hidden: [16, 8]}",
        "model: {kind: dlrm, dim: 8}",
        "defaults: [base, {override model: dlrm}, _self_]",
        "optimizer: {embedding: {lr: 0.1}}",
    ],
)
def test_contents_that_a_file_may_have(text: str) -> None:
    assert mistakes(text) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train: {epoch: 2}", "$.train"),
        ("train: {epochs: many}", "$.train.epochs"),
        ("train: {batch_size: 0}", "$.train.batch_size"),
        ("model: {kind: dlrmm}", "$.model"),
        ("model: {kind: ffnn, attend: {}}", "$.model"),
        ("dataset: {sparse: [{pooling: sum, nam: user}]}", "$.dataset"),
        ("dataset: {dense: [{name: price, transfrom: log1p}]}", "$.dataset"),
        ("embeding: {memory: 8GiB}", "$"),
    ],
)
def test_contents_that_a_file_must_not_have(text: str, place: str) -> None:
    assert mistakes(text) == [place]


def test_keys_come_with_their_help() -> None:
    training = SCHEMA["$defs"]["Training"]["properties"]
    assert all(field.get("description") for field in training.values())
