"""Settings of optimizers, schedules and tables as in a configuration."""

from typing import Any, get_args

from hypothesis import strategies as st

from persia_cli.config.expected import kinds
from persia_cli.config.schema import Optimizer

ROWS: list[dict[str, Any]] = [
    {"kind": kinds(each)[0]}
    | {name: 0.5 + 0.01 * at for at, name in enumerate(each.model_fields) if name not in ("kind", "schedule")}
    for each in get_args(get_args(Optimizer)[0])
]
"""Each kind of row optimizer, with different values of all settings."""
STEP = {"kind": "step", "warmup_steps": 3, "every_steps": 5, "factor": 0.25}
COSINE = {"kind": "cosine", "warmup_steps": 4, "over_steps": 50, "floor": 0.125}

TABLE = st.fixed_dictionaries(
    {},
    optional={
        "dim": st.integers(1, 64),
        "dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
        "optimizer": st.sampled_from(ROWS),
        "clip_norm": st.sampled_from([1.0, 2.0]),
    },
)
NAMES = st.sampled_from([f"t{i}" for i in range(12)])
TABLES = st.dictionaries(NAMES, TABLE, min_size=1)
