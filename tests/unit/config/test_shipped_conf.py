"""Every configuration and every group option that ships is a valid, documented job."""

import pytest
import yaml

from persia_cli.config import expected, offers
from persia_cli.config.compose import compose_run
from persia_cli.config.expected import keys
from persia_cli.config.schema import CosineSchedule, Embedding, Ffnn, Optimizer, ParquetDataset, Run
from persia_cli.errors import ConfigError

PRIMARIES = offers.primaries()
OPTIONS = [f"{group}={name}" for group, options in offers.groups().items() for name in options]


OWN = {
    "dataset=parquet": [
        "dataset.path=d",
        "dataset.labels=[y]",
        "dataset.dense=[x]",
        "dataset.split={kind: every, n: 9}",
    ],
    "model=custom": ["model.file=net.py", "model.name=Net"],
    **{f"model={kind}": ["model.attend={item: [last_items]}"] for kind in ("din", "dien", "bst", "sasrec")},
    "model=two_tower": ["model.user=[user]", "model.item=[item]"],
}
"""Overrides for the settings that an option leaves to the user."""

PAIRS = [
    (name, option)
    for name, file in PRIMARIES.items()
    for option in OPTIONS
    if name == "base" or option.partition("=")[0] in yaml.safe_load(file.read_text())
]
"""Every option with the base, and with the configurations that have separate keys in its group."""


def test_what_ships() -> None:
    assert list(PRIMARIES) == [
        "adult_income",
        "adult_income_original",
        "avazu",
        "avazu_x1",
        "avazu_x4",
        "base",
        "criteo",
        "criteo_1tb",
        "criteo_x1",
        "criteo_x4",
        "movielens_100k",
        "movielens_1m",
        "movielens_25m",
        "synthetic",
        "taobao",
    ]
    assert OPTIONS == [
        "cluster=embedded",
        "cluster=hosts",
        "cluster=kubernetes",
        "cluster=local",
        "cluster=ray",
        "cluster=slurm",
        "dataset=adult_income",
        "dataset=adult_income_original",
        "dataset=avazu",
        "dataset=avazu_x1",
        "dataset=avazu_x4",
        "dataset=criteo",
        "dataset=criteo_1tb",
        "dataset=criteo_x1",
        "dataset=criteo_x4",
        "dataset=movielens_100k",
        "dataset=movielens_1m",
        "dataset=movielens_25m",
        "dataset=parquet",
        "dataset=synthetic",
        "dataset=taobao",
        "dataset=taobao_pooled",
        "mode=async",
        "mode=hybrid",
        "mode=sync",
        "model=afm",
        "model=autoint",
        "model=branches",
        "model=bst",
        "model=custom",
        "model=dcn_v2",
        "model=dcn_v2_mix",
        "model=deepfm",
        "model=dien",
        "model=din",
        "model=din_taobao",
        "model=dlrm",
        "model=esmm",
        "model=ffnn",
        "model=ffnn_paper",
        "model=ffnn_small",
        "model=fibinet",
        "model=finalmlp",
        "model=finalnet",
        "model=fm",
        "model=gdcn",
        "model=lr",
        "model=masknet",
        "model=mmoe",
        "model=ple",
        "model=sasrec",
        "model=two_tower",
        "model=wide_deep",
        "model=xdeepfm",
        "optimizer=adagrad",
        "optimizer=adam",
        "optimizer=adamw",
        "optimizer=adult_income_original",
        "optimizer=ftrl",
        "optimizer=mixed",
        "optimizer=rowwise_adagrad",
        "optimizer=rowwise_adam",
        "optimizer=sgd",
    ]


@pytest.mark.parametrize("name", PRIMARIES)
def test_every_configuration_is_a_job_of_its_name(name: str) -> None:
    assert compose_run([f"conf={name}"]).name == name


@pytest.mark.parametrize(("name", "option"), PAIRS)
def test_every_option_fits_every_configuration(name: str, option: str) -> None:
    compose_run([f"conf={name}", option, *OWN.get(option, [])])


@pytest.mark.parametrize("option", OWN)
def test_options_for_own_things_name_what_is_to_be_given(option: str) -> None:
    with pytest.raises(ConfigError) as failure:
        compose_run([option])
    wanted = [word.partition("=")[0] for word in OWN[option] if word != "dataset.dense=[x]"]
    assert [line.partition(":")[0] for line in str(failure.value).splitlines()] == wanted


@pytest.mark.parametrize(
    "file", [*PRIMARIES.values(), *(f for o in offers.groups().values() for f in o.values())], ids=str
)
def test_every_file_describes_itself(file) -> None:
    assert file.read_text().startswith("# ")


def test_base_spells_every_key() -> None:
    spelled = yaml.safe_load(PRIMARIES["base"].read_text())
    groups = set(offers.groups())
    for key in dict(keys(Run)):
        head, _, leaf = key.partition(".")
        if head not in groups and "." not in leaf:
            assert spelled[head] is None or leaf in spelled[head] if leaf else head in spelled, key


@pytest.mark.parametrize("kind", offers.groups()["cluster"])
def test_a_cluster_takes_keys_that_its_file_does_not_spell(kind: str) -> None:
    cluster = compose_run(["conf=synthetic", f"cluster={kind}", "cluster.work_timeout_s=7"]).cluster
    assert (cluster.kind, cluster.work_timeout_s) == (kind, 7)


def test_there_are_not_more_keys_than_a_reader_can_take_in() -> None:
    assert len(dict(keys(Run))) <= 220


def test_every_optimizer_of_rows_ships_and_its_schedule_takes_single_keys() -> None:
    kinds = set()
    for option in offers.groups()["optimizer"]:
        words = ["optimizer.dense.schedule.warmup_steps=5", "optimizer.embedding.schedule.kind=cosine"]
        pair = compose_run([f"optimizer={option}", *words, "optimizer.embedding.schedule.over_steps=9"]).optimizer
        assert (pair.dense.schedule.warmup_steps, pair.embedding.schedule.warmup_steps) == (5, 0)
        assert pair.embedding.schedule == CosineSchedule(kind="cosine", over_steps=9)
        kinds.add(pair.embedding.kind)
    assert kinds == set(expected.kinds(Optimizer))


def test_neutral_values_are_those_of_the_schema() -> None:
    assert compose_run([]).embedding == Embedding()


def test_plain_train_runs_on_real_data_that_ships() -> None:
    dataset = compose_run([]).dataset
    assert isinstance(dataset, ParquetDataset)
    assert dataset.path == "builtin:adult_income"


def test_criteo_has_the_networks_of_the_papers() -> None:
    run = compose_run(["conf=criteo"])
    assert (run.model.kind, run.model.dim) == ("dlrm", 16)
    for option, hidden in {"ffnn": (400, 400, 400), "ffnn_paper": (4096, 2048, 1024, 512, 256)}.items():
        model = compose_run(["conf=criteo", f"model={option}"]).model
        assert isinstance(model, Ffnn)
        assert model.hidden == hidden
    assert isinstance(run.dataset, ParquetDataset)
    assert run.dataset.generator is not None


def test_every_other_data_set_refuses_to_be_made_up() -> None:
    options = [f"dataset={name}" for name in offers.groups()["dataset"] if name != "criteo"]
    datasets = [compose_run([option, *OWN.get(option, [])]).dataset for option in options]
    assert all(d.generator is None for d in datasets if isinstance(d, ParquetDataset))
