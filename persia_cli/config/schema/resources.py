"""What replicas of each role need of a machine, for schedulers that ask, and the processors they are pinned to."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from persia_cli.config.schema.base import Few, Node
from persia_cli.config.schema.embedding import Bytes


class RoleCpus(Node):
    """Processors of one replica of each role; by default as many as it keeps busy."""

    coordinator: Few | None = None
    """Processors of the coordinator, by default 1."""
    embedding_server: Few | None = None
    """Processors of each embedding server, by default 2."""
    embedding_worker: Few | None = None
    """Processors of each embedding worker, by default 1."""
    data_loader: Few | None = None
    """Processors of each data loader, by default 2."""
    nn_worker: Few | None = None
    """Processors of each NN worker, by default `train.threads` and one more, which moves rows."""


class RoleMemory(Node):
    """Memory of one replica of each role, e.g. 4GiB; by default what its part of the job is planned to take."""

    coordinator: Bytes | None = None
    """Memory of the coordinator, by default 1 GiB."""
    embedding_server: Bytes | None = None
    """Memory of each embedding server, by default its share of `embedding.memory`, and 1 GiB."""
    embedding_worker: Bytes | None = None
    """Memory of each embedding worker, by default 2 GiB."""
    data_loader: Bytes | None = None
    """Memory of each data loader, by default 2 GiB."""
    nn_worker: Bytes | None = None
    """Memory of each NN worker, by default 4 GiB."""


PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?|node:(\d{1,4})")
"""A processor, a range of them, or those of a NUMA node."""


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _is_list_of_processors(text: str) -> str:
    for part in text.split(","):
        found = PART.fullmatch(part)
        if found is None or (found[2] and int(found[1]) > int(found[2])):
            raise ValueError(f"{part or 'nothing'} is no processor; name some, such as 0-3,8 or node:0")
    return text


Processors = Annotated[str, AfterValidator(_is_list_of_processors), BeforeValidator(_text_of_number)]
"""Processors of a machine as Linux numbers them, such as `0-3,8`, or `node:0` for those of a NUMA node."""
PinnedTo = Processors | tuple[Processors, ...]
"""Processors for all replicas of a role, or a list with those of each."""


class RolePins(Node):
    """The processors on which replicas of each role run, such as `0-3,8` or `node:0`; by default on all.

    A list has those of each replica of the role, in their order.
    """

    coordinator: PinnedTo | None = None
    """Processors of the coordinator."""
    embedding_server: PinnedTo | None = None
    """Processors of embedding servers, whose rows lie in the memory beside them."""
    embedding_worker: PinnedTo | None = None
    """Processors of embedding workers."""
    data_loader: PinnedTo | None = None
    """Processors of data loaders."""
    nn_worker: PinnedTo | None = None
    """Processors of NN workers: at least `train.threads` for each."""

    def of(self, role: str, index: int) -> str:
        """Return the processors of a replica; empty if it is not pinned."""
        given: str | tuple[str, ...] | None = getattr(self, role.replace("-", "_"), None)
        return given[index] if isinstance(given, tuple) else given or ""
