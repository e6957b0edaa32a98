"""The base of every config object: frozen, no unknown keys, each field documented."""

from pydantic import BaseModel, ConfigDict


class Node(BaseModel):
    """A validated piece of configuration; the docstring under a field is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
