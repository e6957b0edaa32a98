"""What a drill is to do: which disturbance, to whom, at which step; drawn at random where that is wanted."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from persia_cli.errors import UserError

LAUNCHER = "launcher"
NO_LISTENER = "data-loader"
FIRST, LAST = 0.1, 0.9
"""The part of a training in which random drills happen."""


@dataclass(frozen=True)
class DrillKind:
    """A kind of disturbance: what it does in words, how many targets it takes at least and at most."""

    text: str
    least: int = 0
    most: int = 0
    lasts: bool = False
    """True if it lasts for a time that can be chosen."""


KINDS = {
    "kill": DrillKind("SIGKILL to one process or several at once", least=1, most=8),
    "stop": DrillKind("SIGSTOP, and SIGCONT after a while", least=1, most=8, lasts=True),
    "slow": DrillKind("a process runs a fifth of the time", least=1, most=8, lasts=True),
    "cut": DrillKind("every connection between two processes is broken, again and again", least=2, most=2, lasts=True),
    "fill-disk": DrillKind("a checkpoint finds no room"),
    "corrupt-frame": DrillKind("damaged messages are sent to a process", least=1, most=1),
    "node": DrillKind("SIGKILL to all processes at once, the launcher too, and persia resumes"),
}
AT_RANDOM = ("kill", "stop", "slow", "cut", "corrupt-frame")
"""Kinds that random drills choose from: those that the job itself outlives, and quickly."""
RANDOM_S = (0.2, 2.0)
"""Shortest and longest time of a random disturbance."""


@dataclass(frozen=True)
class Disturbance:
    """One disturbance of a job; without `step` it comes at once."""

    kind: str
    targets: tuple[str, ...] = ()
    step: int | None = None
    for_s: float = 0.0

    @property
    def label(self) -> str:
        """The words of a command line that name it."""
        return " ".join((self.kind, *self.targets))

    @property
    def ends_all(self) -> bool:
        """True if nobody is left who could go on with the job."""
        return self.kind == "node" or LAUNCHER in self.targets


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names (a kind, targets) and the settings among the words of a command line."""
    names = [word for word in words if "=" not in word]
    return names, [word for word in words if "=" in word]


def chosen(names: Sequence[str], step: int | None, for_s: float, replicas: Sequence[str]) -> Disturbance:
    """Return the disturbance that names and options ask for; raises UserError if there is no such one in the job."""
    kinds = ", ".join(KINDS)
    if not names:
        raise UserError(f"name a kind of drill ({kinds}), or give --random N")
    kind, *targets = names
    if kind not in KINDS:
        raise UserError(f"there is no drill {kind}; there are {kinds}")
    rules = KINDS[kind]
    if not rules.least <= len(targets) <= rules.most:
        expected = {(0, 0): "no target", (1, 1): "one target", (2, 2): "two targets"}
        words = expected.get((rules.least, rules.most), "a target or several")
        raise UserError(
            f"persia drill {kind} takes {words}, and there are {len(targets)}; this job has {_all(replicas)}"
        )
    whole = tuple(_target(kind, target, replicas) for target in targets)
    if len(set(whole)) < len(whole):
        raise UserError(f"persia drill {kind}: the same target is named twice")
    return Disturbance(kind, whole, step, for_s if rules.lasts else 0.0)


def _target(kind: str, target: str, replicas: Sequence[str]) -> str:
    """Return the name of a replica: a role alone means its first."""
    if target == LAUNCHER and kind == "kill":
        return target
    name = f"{target}-0" if f"{target}-0" in replicas else target
    if name not in replicas:
        raise UserError(f"there is no {target} in this job to {kind}; it has {_all(replicas)}")
    if kind == "corrupt-frame" and name.startswith(NO_LISTENER):
        raise UserError(f"{name} listens nowhere, so no frame can be sent to it; choose another role")
    return name


def _all(replicas: Sequence[str]) -> str:
    return ", ".join(replicas)


def drawn(number: int, seed: int, first: int, last: int, replicas: Sequence[str]) -> list[Disturbance]:
    """Return disturbances drawn from a seed, in the order of their steps, in the middle of the steps [first, last).

    Raises UserError if there are too few steps.
    """
    length = last - first
    begin, end = first + max(1, round(length * FIRST)), first + round(length * LAST)
    if end - begin < number:
        raise UserError(f"{number} drills do not fit into the {length:,} steps of this training; train more of them")
    choose = random.Random(seed)
    steps = sorted(choose.sample(range(begin, end), number))
    return [_drawn(choose, step, replicas) for step in steps]


def _drawn(choose: random.Random, step: int, replicas: Sequence[str]) -> Disturbance:
    kind = choose.choice(AT_RANDOM)
    rules = KINDS[kind]
    for_s = round(choose.uniform(*RANDOM_S), 2) if rules.lasts else 0.0
    if kind == "cut":
        # Those between which all batches pass; a random pair may have no connection.
        workers = [name for name in replicas if name.startswith("embedding-worker")]
        others = [name for name in replicas if name.startswith(("embedding-server", "nn-worker", "data-loader"))]
        return Disturbance(kind, (choose.choice(workers), choose.choice(others)), step, for_s)
    able = [name for name in replicas if kind != "corrupt-frame" or not name.startswith(NO_LISTENER)]
    return Disturbance(kind, (choose.choice(able),), step, for_s)
