"""Every configuration and every group option that ships is a valid, documented job."""

import pytest
import yaml

from persia_cli.config import available, expected
from persia_cli.config.compose import compose_run
from persia_cli.config.expected import keys
from persia_cli.config.schema import CosineSchedule, Optimizer, Run
from persia_cli.data.read.facts import inspect
from persia_cli.errors import ConfigError

PRIMARIES = available.primaries()
OPTIONS = [f"{group}={name}" for group, options in available.groups().items() for name in options]


SEQUENTIAL = ("din", "dien", "bst", "sasrec", "ligr", "hstu")
OWN = {
    "dataset=parquet": [f"dataset.{own}" for own in ("path=d", "labels=[y]", "dense=[x]", "split={kind: every, n: 9}")],
    "model=custom": ["model.file=net.py", "model.name=Net"],
    **{f"model={kind}": ["model.attend={item: [last_items]}"] for kind in SEQUENTIAL},
    "model=two_tower": ["model.user=[user]", "model.item=[item]"],
}
"""Overrides for the settings that an option leaves to the user."""

NEXT_ITEMS = ("model=sasrec", "model=ligr", "model=hstu")
PAIRS = [
    pytest.param(name, option, marks=() if name == "base" else pytest.mark.slow)
    for name, file in PRIMARIES.items()
    for option in OPTIONS
    if name == "base" or option.partition("=")[0] in yaml.safe_load(file.read_text())
    if "sampled_softmax" not in file.read_text() or not option.startswith("model=") or option in NEXT_ITEMS
]
"""Every option with the base, and with the configurations that have separate keys in its group.

Only a network that predicts the next element fits a configuration with this loss.
"""


@pytest.mark.parametrize(("name", "option"), PAIRS)
def test_every_option_fits_every_configuration(name: str, option: str) -> None:
    compose_run([f"conf={name}", option, *OWN.get(option, [])])


@pytest.mark.parametrize("option", OWN)
def test_options_for_own_things_name_what_is_to_be_given(option: str) -> None:
    with pytest.raises(ConfigError) as failure:
        compose_run([option])
    wanted = [word.partition("=")[0] for word in OWN[option] if word != "dataset.dense=[x]"]
    assert [line.partition(":")[0] for line in str(failure.value).splitlines()] == wanted


def test_every_file_describes_itself() -> None:
    files = [*PRIMARIES.values(), *(file for options in available.groups().values() for file in options.values())]
    assert [file for file in files if not file.read_text().startswith("# ")] == []


def test_base_spells_every_key() -> None:
    spelled = yaml.safe_load(PRIMARIES["base"].read_text())
    groups = set(available.groups())
    for key in dict(keys(Run)):
        head, _, leaf = key.partition(".")
        if head not in groups and "." not in leaf:
            assert spelled[head] is None or leaf in spelled[head] if leaf else head in spelled, key


@pytest.mark.parametrize("kind", available.groups()["cluster"])
def test_a_cluster_takes_keys_that_its_file_does_not_spell(kind: str) -> None:
    cluster = compose_run(["conf=synthetic", f"cluster={kind}", "cluster.work_timeout_s=7"]).cluster
    assert (cluster.kind, cluster.work_timeout_s) == ("local" if kind == "auto" else kind, 7)


def test_there_are_not_more_keys_than_a_reader_can_take_in() -> None:
    assert len(dict(keys(Run))) <= 253, "give the key the name of one with its meaning, or remove another"


def test_every_optimizer_of_rows_ships_and_its_schedule_takes_single_keys() -> None:
    kinds = set()
    for option in available.groups()["optimizer"]:
        words = ["optimizer.dense.schedule.warmup_steps=5", "optimizer.embedding.schedule.kind=cosine"]
        pair = compose_run([f"optimizer={option}", *words, "optimizer.embedding.schedule.over_steps=9"]).optimizer
        assert (pair.dense.schedule.warmup_steps, pair.embedding.schedule.warmup_steps) == (5, 0)
        assert pair.embedding.schedule == CosineSchedule(kind="cosine", over_steps=9)
        kinds.add(pair.embedding.kind)
    assert kinds == set(expected.kinds(Optimizer))


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("adult_income", (32_561, 16_281), (5, 12)),
        ("adult_income_original", (32_561, 16_281), (5, 8)),
        ("synthetic", (200_000, 20_000), (8, 16)),
    ],
)
def test_shipped_data_sets_are_ready(name: str, rows: tuple[int, int], columns: tuple[int, int]) -> None:
    facts = inspect(compose_run([f"conf={name}"]).dataset)
    assert ((facts.train_rows, facts.eval_rows), (facts.dense, len(facts.sparse))) == (rows, columns)
    assert not facts.stand_in
