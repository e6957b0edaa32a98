"""The results of checks and measurements on a GPU, and their page of Markdown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["PASS", "FAIL", "INFO", "LEFT OUT"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    verdict: Verdict
    figures: str

    def line(self) -> str:
        """Return the finding as a line of text."""
        return f"{self.verdict:8}  {self.name}: {self.figures}"


@dataclass(frozen=True, slots=True)
class Speed:
    """A network measured with its tables on embedding servers, together with baselines; samples per second."""

    name: str
    network: str
    dim: int
    batch: int
    precision: str
    persia: float
    tables: float | None
    """Speed with all on the GPU, as one graph; None if they do not fit."""
    dense: float
    """Speed of the dense network alone as a graph, fed from the GPU's memory."""
    gpu_busy: dict[str, float]
    """Fraction of the time in which the GPU computed, for each competitor."""
    stages: dict[str, float] = field(default_factory=dict)
    """Milliseconds per step of each replica's work and waiting, while the GPU also works."""
    phases: dict[str, float] = field(default_factory=dict)
    """Milliseconds of the parts of one rank's step, each finished before the next begins."""
    limit: str = ""
    bars: list[str] = field(default_factory=list)
    """Each bar of the case with its measured value, and whether it passed."""

    def line(self) -> str:
        """Return the speeds as a line of text."""
        tables = "too large" if self.tables is None else f"{self.tables:,.0f}"
        busy = ", ".join(f"{name} {share:.0%}" for name, share in self.gpu_busy.items()) or "unknown"
        return (
            f"SPEED     {self.name}: "
            f"{self.persia:,.0f} samples/s; tables on the GPU {tables}; dense network alone "
            f"{self.dense:,.0f}; GPU busy: {busy}{''.join(f'; {bar}' for bar in self.bars)}"
        )


Left = Callable[[], float]
"""A function that returns the seconds left for a part of the check."""
Findings = Iterator[Finding | Speed]


def judged(name: str, passed: bool, figures: str) -> Finding:
    """Return a finding that passes or fails."""
    return Finding(name, "PASS" if passed else "FAIL", figures)


def left_out(name: str) -> Finding:
    """Return the finding of a check that was left out for lack of time."""
    return Finding(name, "LEFT OUT", "there was no time left for it")


def failed(name: str, error: Exception) -> Finding:
    """Return the finding of a check that raised an error."""
    words = next((line for line in str(error).splitlines() if line.strip()), "")
    return Finding(name, "FAIL", f"{type(error).__name__}: {words}"[:300])


def counted(findings: Sequence[Finding]) -> str:
    """Return the numbers of checks that passed, failed and were left out."""
    verdicts = [finding.verdict for finding in findings]
    return (
        f"{verdicts.count('PASS')} passed, {verdicts.count('FAIL')} failed, {verdicts.count('LEFT OUT')} left out for "
        "lack of time"
    )


def page(facts: Mapping[str, str], parts: Mapping[str, Sequence[Finding | Speed]], command: str) -> str:
    """Return the page; `facts` describe the machine."""
    findings = [each for part in parts.values() for each in part if isinstance(each, Finding)]
    speeds = [each for part in parts.values() for each in part if isinstance(each, Speed)]
    lines = ["# Persia on a GPU", "", f"Made by `{command}`: {counted(findings)}.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    for part, found in parts.items():
        own = [each for each in found if isinstance(each, Finding)]
        if own:
            lines += ["", f"## {part}", "", "| verdict | check | numbers |", "|---|---|---|"]
            lines += [f"| {each.verdict} | {_cell(each.name)} | {_cell(each.figures)} |" for each in own]
    if speeds:
        lines += ["", *_table(speeds), "", *_bars(speeds), *(line for speed in speeds for line in _where(speed))]
    return "\n".join(lines).rstrip() + "\n"


def _table(speeds: Sequence[Speed]) -> list[str]:
    lines = [
        "## Samples per second",
        "",
        "All alternate on the same batches, which repeat from memory, and train by CUDA graphs; medians. `network "
        "alone` has no tables and reads embeddings from the GPU's memory.",
        "",
        "| network | dim | batch | precision | persia | tables on the GPU | network alone | persia / tables "
        "| persia / network alone | GPU busy, persia |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in speeds:
        busy = each.gpu_busy.get("persia")
        lines.append(
            f"| {each.network} | {each.dim} | {each.batch:,} | {each.precision} | {each.persia:,.0f} "
            f"| {'does not fit' if each.tables is None else format(each.tables, ',.0f')} | {each.dense:,.0f} "
            f"| {'' if each.tables is None else format(each.persia / each.tables, '.2f')} "
            f"| {each.persia / each.dense:.2f} | {'unknown' if busy is None else format(busy, '.0%')} |"
        )
    return lines


def _bars(speeds: Sequence[Speed]) -> list[str]:
    judged = [f"- {speed.name}: {'; '.join(speed.bars)}" for speed in speeds if speed.bars]
    return (
        ["Bars for one H100 with 16 processors, 4 servers, 3 workers, staleness 8:", "", *judged, ""] if judged else []
    )


def _where(speed: Speed) -> list[str]:
    """Return the times of the parts of a step."""
    parts = ", ".join(f"{phase} {ms:.2f}" for phase, ms in speed.phases.items())
    stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in speed.stages.items())
    return [
        f"### Where the time goes: {speed.name}",
        "",
        f"One rank's step, each part waited for, in ms: {parts}.",
        "",
        f"The job, in ms per step of each process: {stages}.",
        "",
        speed.limit,
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
