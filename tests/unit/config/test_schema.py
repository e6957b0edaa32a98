"""The schema: documented fields, sizes as people write them, and a JSON Schema by which editors check files."""

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from persia_cli.config import available, schema
from persia_cli.config.compose import compose_run
from persia_cli.config.expected import field_expectation, keys
from persia_cli.config.json_schema import file_schema
from persia_cli.config.record import to_yaml
from persia_cli.config.schema import Node, Run
from persia_cli.config.schema.embedding import Bytes

SCHEMA = file_schema()
FILES = available.primaries()


def mistakes(text: str) -> list[str]:
    return [error.json_path for error in Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(text))]


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", FILES)
def test_shipped_configurations_are_jobs_and_fit(name: str) -> None:
    assert mistakes(FILES[name].read_text()) == []
    run = compose_run([f"conf={name}"])
    assert run.name == name
    assert mistakes(to_yaml(run)) == []


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


def test_every_field_is_documented() -> None:
    nodes = [member for member in vars(schema).values() if isinstance(member, type) and issubclass(member, Node)]
    assert len(nodes) > 80
    assert [node.__name__ for node in nodes if not node.__doc__] == []
    fields = [(node.__name__, name, field) for node in nodes for name, field in node.model_fields.items()]
    assert [(node, name) for node, name, field in fields if not (field.description or "").strip()] == []


def test_every_key_describes_its_values() -> None:
    assert [key for key, field in keys(Run) if field_expectation(field) == "any value"] == []


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("512MiB", 512 * 2**20),
        ("512MB", 512 * 10**6),
        ("2 GiB", 2**31),
        ("1.5g", 3 * 2**29),
        ("100", 100),
        (100, 100),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str | int, nbytes: int) -> None:
    assert TypeAdapter(Bytes).validate_python(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "1.2.3MiB", "1XB", "-1", 0, -5])
def test_what_is_no_size(text: str | int) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Bytes).validate_python(text)
