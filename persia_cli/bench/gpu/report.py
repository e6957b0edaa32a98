"""The results of the GPU check as a page of Markdown."""

from collections.abc import Mapping, Sequence

from persia_cli.bench.gpu.finding import Finding, Speed


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
            lines += ["", f"## {part}", "", "| verdict | check | figures |", "|---|---|---|"]
            lines += [f"| {each.verdict} | {_cell(each.name)} | {_cell(each.figures)} |" for each in own]
    if speeds:
        lines += ["", *_table(speeds), "", *(line for speed in speeds for line in _where(speed))]
    return "\n".join(lines).rstrip() + "\n"


def _table(speeds: Sequence[Speed]) -> list[str]:
    lines = [
        "## Samples per second",
        "",
        "All take turns on the same batches, which repeat from memory; medians. `EmbeddingBag` has all tables on the "
        "GPU; `network alone` has no tables and reads embeddings from the GPU's memory.",
        "",
        "| network | dim | batch | precision | persia | EmbeddingBag | network alone | persia / EmbeddingBag "
        "| persia / network alone | GPU busy, persia |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in speeds:
        busy = each.gpu_busy.get("persia")
        lines.append(
            f"| {each.network} | {each.dim} | {each.batch:,} | {each.precision} | {each.persia:,.0f} "
            f"| {'does not fit' if each.torch is None else format(each.torch, ',.0f')} | {each.dense:,.0f} "
            f"| {'' if each.torch is None else format(each.persia / each.torch, '.2f')} "
            f"| {each.persia / each.dense:.2f} | {'unknown' if busy is None else format(busy, '.0%')} |"
        )
    return lines


def _where(speed: Speed) -> list[str]:
    """Return the times of the parts of a step."""
    name = f"{speed.network} dim {speed.dim} batch {speed.batch:,} {speed.precision}"
    parts = ", ".join(f"{phase} {ms:.2f}" for phase, ms in speed.phases.items())
    stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in speed.stages.items())
    return [
        f"### Where the time goes: {name}",
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
