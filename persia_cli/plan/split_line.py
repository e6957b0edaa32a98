"""The line of YAML that gives a data set the part of its split that it lacks."""

from typing import Any, Literal

from persia_cli.config.schema import ParquetDataset, Run

SHARE = 0.1
"""Fraction of the samples that a proposed part has."""


def split_line(run: Run, lacking: Literal["eval", "test"]) -> str:
    """Return the end of a sentence: the line to paste into the data set's YAML, `???` where only the user knows.

    It is empty for a data set without such a split.
    """
    dataset = run.dataset
    if not isinstance(dataset, ParquetDataset):
        return ""
    split = dataset.split
    has_fraction = getattr(split, "eval_fraction", None)
    share: dict[str, Any] = {"eval_fraction": has_fraction or SHARE}
    if lacking == "test":
        share["test_fraction"] = min(share["eval_fraction"], (1.0 - share["eval_fraction"]) / 2.0)
    if split.kind in ("files", "column"):
        keys = split.model_dump(mode="json", exclude_none=True) | {lacking: "???"}
        keys = {key: value for key, value in keys.items() if value != []}
    elif split.kind == "last":
        keys = split.model_dump(mode="json", exclude_none=True) | {"test": True}
    elif split.kind == "time":
        own = split.model_dump(mode="json", include={"kind", "column", "format"}, exclude_none=True)
        keys = own | share
    else:
        keys = {"kind": "hash"} | split.model_dump(mode="json", include={"column"}, exclude_none=True) | share
    return f"; paste into the YAML of the data set: split: {_flow(keys)}"


def _flow(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True).strip()
