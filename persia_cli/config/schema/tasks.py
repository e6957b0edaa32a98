"""The settings of networks for several labels; `persia_cli.model` has the networks."""

from typing import ClassVar, Literal

from persia_cli.config.schema.base import Few, SomeWidths, Widths
from persia_cli.config.schema.perceptrons import Concatenated


class Mmoe(Concatenated):
    """Experts shared by all tasks, a gate and a tower for each (KDD 2018, doi 10.1145/3219819.3220007)."""

    LISTS: ClassVar[tuple[str, ...]] = ("expert", "tower")

    kind: Literal["mmoe"]
    """`mmoe`: multi-gate mixture of experts."""
    experts: Few
    """Experts."""
    expert: SomeWidths
    """Width of each layer of an expert."""
    tower: Widths
    """Width of each hidden layer of a task's tower."""
