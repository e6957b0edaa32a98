"""Values of configuration keys to show: an example of each, and those that a shell offers."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from types import NoneType
from typing import Any, get_args

import yaml
from pydantic.fields import FieldInfo

from persia_cli.config.expected import as_people_write, choices, nodes
from persia_cli.config.overrides import quoted
from persia_cli.shipped import shipped

EXAMPLES: dict[str, Any] = {
    "checkpoint.every_steps": 5000,
    "checkpoint.path": "s3://models/shop",
    "cluster.address": "10.0.0.1:6379",
    "cluster.environment_secrets": ["aws-access"],
    "cluster.gpu_nodes": 2,
    "cluster.gpu_partition": "gpu",
    "cluster.hosts[].address": "10.0.0.1",
    "cluster.hosts[].roles": ["nn-worker", "embedding-server-0"],
    "cluster.hosts[].ssh": "me@h1",
    "cluster.hours": 12,
    "cluster.image": "registry.example.com/persia:0.1.0",
    "cluster.labels": {"team": "ranking"},
    "cluster.nodes": 4,
    "cluster.options": ["--account=ranking", "--qos=long"],
    "cluster.partition": "batch",
    "cluster.pin": {"embedding_server": ["node:0", "node:1"]},
    "cluster.pod": {"metadata": {"labels": {"team": "ranking"}}},
    "cluster.resources.NAME.cpus": 16,
    "cluster.resources.NAME.gpus": 1,
    "cluster.resources.NAME.memory": "8GiB",
    "cluster.run_claim": "runs",
    "cluster.setup": ["module load python"],
    "cluster.volumes[].claim": "rows",
    "cluster.volumes[].path": "/data",
    "dataset.csv.delimiter": ";",
    "dataset.csv.text": ["zip_code"],
    "dataset.dense[].bins": 16,
    "dataset.dense[].deviation": 15.5,
    "dataset.dense[].format": "%d/%m/%Y",
    "dataset.dense[].mean": 38.6,
    "dataset.dense[].name": "price",
    "dataset.dense[].times_of": "last_items",
    "dataset.dense[].until": "time",
    "dataset.dense[].width": 64,
    "dataset.accept_changed": "3f2a9c51",
    "dataset.fill": 0,
    "dataset.histories.NAME.columns": ["movie"],
    "dataset.histories.NAME.format": "seconds",
    "dataset.histories.NAME.max_length": 200,
    "dataset.histories.NAME.path": "events/*.parquet",
    "dataset.histories.NAME.ties": "file_order",
    "dataset.histories.NAME.time": "time",
    "dataset.histories.NAME.user": "user",
    "dataset.labels[].at_least": 4,
    "dataset.labels[].name": "bought",
    "dataset.labels[].positive": "yes",
    "dataset.raw[].table": "country",
    "dataset.samples.of": "watched",
    "dataset.sparse[].buckets": 10,
    "dataset.sparse[].column": "last_seen",
    "dataset.sparse[].format": "seconds",
    "dataset.sparse[].padding": 0,
    "dataset.sparse[].separator": ";",
    "dataset.split.column": "day",
    "dataset.split.eval_fraction": 0.1,
    "dataset.split.eval_from": "2024-02-01",
    "dataset.split.format": "%Y%m%d",
    "dataset.split.group": "user",
    "dataset.split.order": "time",
    "dataset.split.test": ["day_24"],
    "dataset.split.test_fraction": 0.1,
    "dataset.split.test_from": "2024-03-01",
    "dataset.weight": "weight",
    "embedding.admission.min_count": 3,
    "embedding.cold.path": "/ssd/rows",
    "embedding.cold.size": "500GiB",
    "embedding.expire_after": 100_000,
    "embedding.memory": "8GiB",
    "embedding.tables.NAME.admission": 0.5,
    "embedding.tables.NAME.admission.min_count": 3,
    "embedding.tables.NAME.clip_norm": 0.01,
    "embedding.tables.NAME.dim": 32,
    "embedding.tables.NAME.hash_stack.rounds": 2,
    "embedding.tables.NAME.hash_stack.size": 100_000,
    "embedding.tables.NAME.init_bound": 0.01,
    "embedding.tables.NAME.share": 0.5,
    "embedding.tables.NAME.weight_bound": 10,
    "eval.every_epochs": 1,
    "eval.retrieval": [10, 100],
    "eval.users": 5000,
    "dataset.raw": [{"columns": ["price"], "read": "number", "steps": ["log1p", "float32"]}],
    "publish.guard.calibration": 1.1,
    "publish.guard.ne": 0.95,
    "publish.to": "published/shop",
    "init_from.path": "runs/old",
    "init_from.skip": ["shop", "optimizer"],
    "init_from.tables": {"user": "member"},
    "init_from.vectors.NAME.id": "asin",
    "init_from.vectors.NAME.path": "s3://bucket/items",
    "init_from.vectors.NAME.vector": "embedding",
    "loggers": ["tensorboard", "mlflow"],
    "metrics_port": 9400,
    "model.args": {"hidden": 32},
    "model.attend": {"item": ["last_items"]},
    "model.experts": 4,
    "model.file": "net.py",
    "model.gate.first": ["user"],
    "model.gate.second": ["item"],
    "model.hidden": [400, 400],
    "model.item": ["item", "category"],
    "model.name": "Net",
    "model.rank": 64,
    "model.user": ["user", "country"],
    "optimizer.embedding.schedule.every_steps": 10_000,
    "optimizer.embedding.schedule.factor": 0.5,
    "optimizer.embedding.schedule.over_steps": 10_000,
    "train.trace_steps": [20, 220],
}
"""Key -> example, for keys without a default that no shipped configuration sets, and sizes in bytes."""

ABSENT: tuple[Any, ...] = (None, "", "???", [], {}, ())
MAX_LENGTH = 80
"""Characters of an example, if there is one as short."""
PLAIN = r"[\w.+/:@ -]+"
"""Texts that need no quotes in an argument."""
WORD = r"[\w.+-]+"
"""Values that need no quotes in a shell."""


def example_of(key: str, field: FieldInfo) -> Any:
    """Return an example of a key: its default, or one from `conf/`, from the table, or of its choices; None without."""
    values: Sequence[Any] = (EXAMPLES.get(key), *_defaults(field), _shipped().get(key), *choices(field.annotation))
    values = [value for value in values if value not in ABSENT]
    return next((value for value in values if len(as_argument(value)) <= MAX_LENGTH), values[0] if values else None)


def offered_values(field: FieldInfo) -> list[str]:
    """Return the values that a shell offers for a field, its default among them; empty for a group of keys."""
    values = [as_argument(value) for value in _defaults(field) if not isinstance(value, list | tuple | dict)]
    values += ["false", "true"] if bool in get_args(field.annotation) or field.annotation is bool else []
    values += ["null"] if NoneType in get_args(field.annotation) else []
    values += choices(field.annotation)
    return list(dict.fromkeys(value for value in values if re.fullmatch(WORD, value)))


def _defaults(field: FieldInfo) -> list[Any]:
    """Return the default of a field; nothing for a required key and for a group of keys."""
    default = field.get_default(call_default_factory=True)
    return [] if field.is_required() or nodes(type(default)) else [as_people_write(field, default)]


def as_argument(value: Any) -> str:
    """Write a value as on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_argument, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {as_argument(inner)}' for key, inner in value.items())}}}"
    if not isinstance(value, str):
        return json.dumps(value)
    return "tab" if value == "\t" else value if re.fullmatch(PLAIN, value) else quoted(value)


@cache
def _shipped() -> dict[str, Any]:
    """Return the values in `conf/` by key."""
    found: dict[str, Any] = {}
    for file in sorted(shipped("conf").rglob("*.yaml")):
        group = "" if file.parent.name == "conf" else file.parent.name
        for key, value in _values(group, yaml.safe_load(file.read_text(encoding="utf-8")) or {}):
            if not (isinstance(value, str) and value.startswith("${")):  # computed when the file is read
                found.setdefault(key, value)
    return found


def _values(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield key and value of everything below a key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            below = f"{path}.{key}".lstrip(".")
            yield below, inner
            yield from _values(below, inner)
    elif isinstance(value, list):
        for element in value:
            yield from _values(f"{path}[]", element)
