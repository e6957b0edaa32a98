"""Arguments and files become a checked Run."""

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Dlrm, EverySplit, Ffnn, HybridMode, ParquetDataset, Run, SyncMode


def compose(user_conf: Path, *words: str) -> Run:
    return compose_run(["conf=mine", *words], [user_conf])


def test_the_users_folder_adds_to_the_built_in_one(user_conf: Path) -> None:
    run = compose(user_conf)
    assert run.name == "mine"
    assert run.dataset.kind == "generated"
    assert isinstance(run.mode, HybridMode)


def test_the_users_folder_shadows_the_built_in_one(user_conf: Path) -> None:
    (user_conf / "model").mkdir()
    (user_conf / "model" / "ffnn.yaml").write_text("kind: ffnn\ndim: 3\nhidden: [7]\n")
    assert compose(user_conf).model == Ffnn(kind="ffnn", dim=3, hidden=(7,))


def test_a_path_brings_its_folder(user_conf: Path) -> None:
    assert compose_run([f"conf={user_conf / 'mine.yaml'}"]) == compose(user_conf)


def test_groups_and_keys_in_any_order(user_conf: Path) -> None:
    run = compose(user_conf, "mode.staleness=5", "model.dim=32", "model=dlrm", "cluster=embedded", "train.epochs=2")
    assert isinstance(run.mode, HybridMode)
    assert run.mode.staleness == 5
    assert isinstance(run.model, Dlrm)
    assert run.model.dim == 32
    assert (run.cluster.kind, run.train.epochs) == ("embedded", 2)


def test_plus_signs_change_nothing(user_conf: Path) -> None:
    assert compose(user_conf, "+mode=sync", "++seed=3", "+model.dim=8") == compose(
        user_conf, "mode=sync", "seed=3", "model.dim=8"
    )


def test_a_deleted_key_takes_its_default(user_conf: Path) -> None:
    assert compose(user_conf, "embedding.init_bound=0.5", "~embedding.init_bound").embedding.init_bound == 0.01


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("dataset.path=/a/year=2020", "/a/year=2020"),
        ("dataset.path=/a/été", "/a/été"),
        ("dataset.path=a b", "a b"),
        ("dataset.path='a b'", "a b"),
        ("dataset.path=s3://bucket/folder", "s3://bucket/folder"),
        ("dataset.path=it's", "it's"),
        ("dataset.path=a\\b", "a\\b"),
        ("dataset.path=é\\b's\\", "é\\b's\\"),
    ],
)
def test_values_are_taken_as_they_are_typed(user_conf: Path, word: str, path: str) -> None:
    (user_conf / "dataset" / "files.yaml").write_text(
        "kind: parquet\npath: ???\nlabels: [y]\ndense: [x]\nsplit: {kind: every, n: 5}\n"
    )
    dataset = compose(user_conf, "dataset=files", word).dataset
    assert isinstance(dataset, ParquetDataset)
    assert dataset.path == path


def test_a_missing_value_is_asked_for(user_conf: Path) -> None:
    from persia_cli.errors import ConfigError

    (user_conf / "dataset" / "files.yaml").write_text(
        "kind: parquet\npath: ???\nlabels: [y]\ndense: [x]\nsplit: {kind: every, n: 1}\n"
    )
    with pytest.raises(ConfigError) as caught:
        compose(user_conf, "dataset=files")
    assert str(caught.value).splitlines() == [
        "dataset.path: needs a value (text or a list of texts); give dataset.path=...",
        "dataset.split.n=1: expected a whole number of at least 2",
    ]


def test_interpolations_and_the_environment(user_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIA_TEST_SEED", "17")
    run = compose(user_conf, "seed=${oc.env:PERSIA_TEST_SEED}", "train.log_every_steps=${train.batch_size}")
    assert run.seed == 17
    assert run.train.log_every_steps == run.train.batch_size


def test_a_file_without_self_comes_last(user_conf: Path) -> None:
    (user_conf / "other.yaml").write_text("defaults: [mine]\nname: other\n")
    assert compose_run(["conf=other"], [user_conf]).name == "other"


def test_a_file_that_spells_groups_out_takes_options_too(user_conf: Path, tmp_path: Path) -> None:
    from persia_cli.config.record import to_yaml

    (tmp_path / "flat.yaml").write_text(to_yaml(compose(user_conf)))
    conf = f"conf={tmp_path / 'flat.yaml'}"
    run = compose_run([conf, "mode=sync", "model=dlrm", "model.dim=4", "train.epochs=3"])
    assert isinstance(run.mode, SyncMode)
    assert isinstance(run.model, Dlrm)
    assert (run.model.dim, run.train.epochs) == (4, 3)


def test_hydra_is_left_unchanged(user_conf: Path) -> None:
    compose(user_conf)
    assert not GlobalHydra.instance().is_initialized()


def test_folders_of_one_job_do_not_reach_the_next(user_conf: Path) -> None:
    from persia_cli.errors import ConfigError

    compose(user_conf)
    with pytest.raises(ConfigError, match="conf=mine: no such configuration"):
        compose_run(["conf=mine"])


def test_a_mapping_that_names_its_kind_takes_the_place_of_another_kind() -> None:
    run = compose_run(["dataset.split={kind: every, n: 10}", "model={kind: dlrm, dim: 8, bottom: [16], top: ['4']}"])
    assert isinstance(run.dataset, ParquetDataset)
    assert run.dataset.split == EverySplit(kind="every", n=10)
    assert run.model == Dlrm(kind="dlrm", dim=8, bottom=(16,), top=(4,))


def test_a_mapping_that_names_no_kind_changes_single_keys() -> None:
    assert compose_run(["dataset.split={train: eval, eval: train}"]).dataset.split.kind == "column"


@pytest.mark.parametrize(
    "words", [["init_from=runs/old", "init_from.skip=[dense]"], ["init_from.skip=[dense]", "init_from=runs/old"]]
)
def test_the_short_form_of_a_warm_start_goes_together_with_its_other_keys(words: list[str]) -> None:
    source = compose_run(["conf=synthetic", *words]).init_from
    assert source is not None
    assert (source.path, source.skip) == ("runs/old", ("dense",))
    assert compose_run(["conf=synthetic", "init_from=runs/old", "init_from=null"]).init_from is None
