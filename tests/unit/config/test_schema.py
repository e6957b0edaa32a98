"""The schema documents every field, and sizes and names are read as people write them."""

import pytest
from pydantic import TypeAdapter, ValidationError

from persia_cli.config import schema
from persia_cli.config.expected import field_expectation, keys
from persia_cli.config.schema import Node, Run
from persia_cli.config.schema.embedding import Bytes


def node_classes() -> list[type[Node]]:
    members = vars(schema).values()
    return [member for member in members if isinstance(member, type) and issubclass(member, Node)]


@pytest.mark.parametrize("node", node_classes(), ids=lambda node: node.__name__)
def test_every_field_is_documented(node: type[Node]) -> None:
    assert node.__doc__
    undocumented = [name for name, field in node.model_fields.items() if not (field.description or "").strip()]
    assert undocumented == []


def test_every_key_describes_its_values() -> None:
    assert [key for key, field in keys(Run) if field_expectation(field) == "any value"] == []


def test_runs_are_frozen_and_strict_about_keys() -> None:
    assert all(
        node.model_config.get("frozen") and node.model_config.get("extra") == "forbid" for node in node_classes()
    )


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("512MiB", 512 * 2**20), ("2 GiB", 2**31), ("1.5g", 3 * 2**29), ("100", 100), (100, 100), ("1TiB", 2**40)],
)
def test_sizes(text: str | int, nbytes: int) -> None:
    assert TypeAdapter(Bytes).validate_python(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "1.2.3MiB", "1XB", "-1", 0, -5])
def test_what_is_no_size(text: str | int) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Bytes).validate_python(text)
