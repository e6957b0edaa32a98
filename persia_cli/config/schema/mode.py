"""The order of embedding updates and dense updates."""

from typing import Annotated, Literal

from pydantic import Field

from persia_cli.config.schema.base import NUMBER, Node


class SyncMode(Node):
    """Every look-up of a step sees every update of the steps before it."""

    kind: Literal["sync"]
    """`sync`: fully synchronous training."""


MAX_STALENESS = 1024
"""More steps in flight only cost memory and accuracy."""


class _BoundedMode(Node):
    """A mode in which each rank has a few steps in flight."""

    staleness: Annotated[int, Field(ge=1, le=MAX_STALENESS), NUMBER] = 3
    """Steps a rank may have in flight between look-up and applied update (1 with one rank is sync)."""


class HybridMode(_BoundedMode):
    """Dense weights synchronous, embeddings asynchronous within a bound."""

    kind: Literal["hybrid"]
    """`hybrid`: bounded-stale embeddings."""


class AsyncMode(_BoundedMode):
    """Dense weights asynchronous too: the embedding servers hold them, and ranks do not wait for each other."""

    kind: Literal["async"]
    """`async`: bounded-stale embeddings and dense weights."""


Mode = Annotated[SyncMode | HybridMode | AsyncMode, Field(discriminator="kind")]
