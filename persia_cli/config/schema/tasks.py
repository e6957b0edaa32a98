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


class Ple(Concatenated):
    """Levels of experts of each task and shared ones, mixed by gates (RecSys 2020, doi 10.1145/3383313.3412236)."""

    LISTS: ClassVar[tuple[str, ...]] = ("expert", "tower")

    kind: Literal["ple"]
    """`ple`: progressive layered extraction."""
    layers: Few
    """Levels of experts."""
    own: Few
    """Experts of each label in a level."""
    shared: Few
    """Experts of all labels in a level."""
    expert: SomeWidths
    """Width of each layer of an expert."""
    tower: Widths
    """Width of each hidden layer of a label's tower."""


class Esmm(Concatenated):
    """A tower for each label of a chain such as click and conversion; probabilities multiply (arXiv 1804.07931)."""

    kind: Literal["esmm"]
    """`esmm`: entire space multi-task model."""
    hidden: Widths
    """Width of each hidden layer of a label's tower."""


MultiTask = Mmoe | Ple | Esmm
