"""Every key of the schema, set to every kind of nonsense: a plain error, never an internal one, never accepted."""

import copy
import math
from typing import Any

from pydantic import ValidationError

from persia_cli.config.compose import compose_run
from persia_cli.config.expected import field_expectation, keys
from persia_cli.config.explain import explain
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.plan.job import plan_job
from tests.support.runs import make_facts

NO_NUMBERS: tuple[Any, ...] = (1e23, 10**23, math.nan, math.inf, True, "", "text", "1" * 400, [], [True], {})
NONSENSE: tuple[Any, ...] = (
    *NO_NUMBERS, -1, None, "9" * 400 + "GiB", [[1]], [None], [-1], [10**14], [{}], {"a": 1}, {"kind": "wombat"},
    {"kind": [1]}, {"kind": None},
)  # fmt: skip
JARGON = ("DictConfig", "ListConfig", "Input should", "NoneType", "ValidationError", "unable to parse", "valid integer")
SETTINGS = (
    ("mode=hybrid",),
    ("dataset=synthetic", "mode=sync"),
    ("model=dlrm", "optimizer=ftrl"),
    ("model=autoint", "optimizer=adamw"),
    ("model=finalmlp", "optimizer=rowwise_adagrad"),
    ("model=mmoe", "optimizer=sgd"),
    ("model=dcn_v2_mix", "optimizer=adam"),
    ("model=branches", "eval.every_steps=5", "train.stop_early={metric: auc}"),
    (
        "model=xdeepfm",
        "optimizer.dense.schedule={kind: cosine, over_steps: 5}",
        "optimizer.embedding.schedule={kind: step, every_steps: 4, factor: 0.5}",
    ),
)


def test_no_key_takes_nonsense() -> None:
    """Settings later in the list try only the keys that those before do not have."""
    tried = set()
    for words in SETTINGS:
        base = compose_run(["conf=adult_income", *words]).model_dump(mode="json")
        for key, field in keys(Run, base):
            if key in tried:
                continue
            tried.add(key)
            expected = field_expectation(field)
            is_number = expected.startswith(("a number", "a whole number"))
            for place, value in enumerate(NONSENSE):
                taken = outcome(base, key, value)
                if is_number and place < len(NO_NUMBERS):
                    assert not taken, f"{key}={value} is taken, where {expected} is expected"


def outcome(base: dict[str, Any], key: str, value: Any) -> bool:
    """Return True if a run is planned with this value; a refusal is a sentence for people."""
    values = copy.deepcopy(base)
    holder: Any = values
    *groups, leaf = key.split(".")
    for group in groups:
        holder = holder[group] if isinstance(holder, dict) else None
    if not isinstance(holder, dict):
        return False
    holder[leaf] = value
    try:
        run = Run.model_validate(values)
        plan_job(run, make_facts(run, 100, 20), "train", None)  # type: ignore[arg-type]
    except ValidationError as error:
        sentences = explain(error, Run, values)
        assert sentences
        for sentence in sentences.values():
            assert not any(word in sentence for word in JARGON), sentence
        return False
    except UserError:
        return False
    return True
