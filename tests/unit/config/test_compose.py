"""Arguments and files become a checked Run, whose record reads back as the same."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.record import read_run, write_run
from persia_cli.config.schema import Dlrm, EverySplit, Ffnn, ParquetDataset, Run
from persia_cli.errors import ConfigError
from persia_cli.version import __version__


def compose(user_conf: Path, *words: str) -> Run:
    return compose_run(["conf=mine", *words], [user_conf])


def test_the_users_folder_shadows_the_built_in_one(user_conf: Path) -> None:
    (user_conf / "model").mkdir()
    (user_conf / "model" / "ffnn.yaml").write_text("kind: ffnn\ndim: 3\nhidden: [7]\n")
    assert compose(user_conf).model == Ffnn(kind="ffnn", dim=3, hidden=(7,))


def test_a_path_brings_its_folder(user_conf: Path) -> None:
    assert compose_run([f"conf={user_conf / 'mine.yaml'}"]) == compose(user_conf)


def test_groups_and_keys_in_any_order(user_conf: Path) -> None:
    run = compose(user_conf, "mode.staleness=5", "model.dim=32", "model=dlrm", "cluster=embedded", "train.epochs=2")
    assert (run.mode.kind, run.mode.staleness) == ("hybrid", 5)
    assert (run.model.kind, run.model.dim) == ("dlrm", 32)
    assert (run.cluster.kind, run.train.epochs) == ("embedded", 2)


@pytest.mark.parametrize(
    ("typed", "path"),
    [("/a/year=2020", "/a/year=2020"), ("/a/été", "/a/été"), ("a b", "a b"), ("s3://bucket/folder", "s3://bucket/folder"),
     ("it's", "it's"), ("é\\b's\\", "é\\b's\\"), ("'a b'", "a b")],
)  # fmt: skip
def test_values_are_taken_as_they_are_typed(user_conf: Path, typed: str, path: str) -> None:
    assert compose(user_conf, "dataset=adult_income", f"dataset.path={typed}").dataset.path == path


def test_a_missing_value_is_asked_for(user_conf: Path) -> None:
    text = "kind: parquet\npath: ???\nlabels: [y]\ndense: [x]\nsplit: {kind: every, n: 1}\n"
    (user_conf / "dataset" / "files.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        compose(user_conf, "dataset=files")
    missing, wrong = str(caught.value).splitlines()
    assert missing == "dataset.path: needs a value (text or a list of texts); give dataset.path=..."
    assert wrong.startswith("dataset.split.n=1: ")


def test_interpolations_and_the_environment(user_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIA_TEST_SEED", "17")
    run = compose(user_conf, "seed=${oc.env:PERSIA_TEST_SEED}", "train.log_every_steps=${embedding.num_partitions}")
    assert run.seed == 17
    assert run.train.log_every_steps == run.embedding.num_partitions


def test_a_file_that_spells_groups_out_takes_options_too(user_conf: Path, tmp_path: Path) -> None:
    from persia_cli.config.record import to_yaml

    (tmp_path / "flat.yaml").write_text(to_yaml(compose(user_conf)))
    conf = f"conf={tmp_path / 'flat.yaml'}"
    run = compose_run([conf, "mode=sync", "model=dlrm", "model.dim=4", "train.epochs=3"])
    assert (run.mode.kind, run.model.kind, run.model.dim, run.train.epochs) == ("sync", "dlrm", 4, 3)


def test_a_mapping_that_names_its_kind_takes_the_place_of_another_kind() -> None:
    run = compose_run(["dataset.split={kind: every, n: 10}", "model={kind: dlrm, dim: 8, bottom: [16], top: ['4']}"])
    assert isinstance(run.dataset, ParquetDataset)
    assert run.dataset.split == EverySplit(kind="every", n=10)
    assert run.model == Dlrm(kind="dlrm", dim=8, bottom=(16,), top=(4,))


@pytest.mark.parametrize(
    "words", [["init_from=runs/old", "init_from.skip=[dense]"], ["init_from.skip=[dense]", "init_from=runs/old"]]
)
def test_the_short_form_of_a_warm_start_goes_together_with_its_other_keys(words: list[str]) -> None:
    source = compose_run(["conf=synthetic", *words]).init_from
    assert (source.path, source.skip) == ("runs/old", ("dense",))
    assert compose_run(["conf=synthetic", "init_from=runs/old", "init_from=null"]).init_from is None


TABLES = "embedding.tables={a: {dim: 4, dtype: float16, share: 0.5}, b: {hash_stack: {rounds: 2, size: 9}}}"
SCHEDULE = "optimizer.embedding.schedule={kind: step, every_steps: 5, factor: 0.5}"


def test_a_run_reads_back_equal_and_can_be_run_again(user_conf: Path, tmp_path: Path) -> None:
    words = ["conf=mine", "embedding.memory=3MiB", "optimizer.dense.lr=1e-12", TABLES, SCHEDULE]
    run = compose_run(words, [user_conf])
    path = tmp_path / "config.yaml"
    write_run(run, path)
    assert read_run(path) == run
    assert compose_run([f"conf={path}"]) == run
    assert path.read_text().startswith("# The complete configuration of a run, written by persia ")
    assert [file.name for file in tmp_path.glob("config*")] == ["config.yaml"]


def test_a_missing_record(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/config\.yaml: there is no such file$"):
        read_run(tmp_path / "config.yaml")


def test_a_record_of_another_version_is_refused_as_such(user_conf: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_run(compose_run(["conf=mine"], [user_conf]), path)
    path.write_text(path.read_text().replace(__version__, "0.0.1").replace("seed: 0", "seeds: 0\nother: 1"))
    with pytest.raises(ConfigError, match=r"was written by persia 0\.0\.1, .* go on with persia 0\.0\.1") as refused:
        read_run(path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_damaged_record(user_conf: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_run(compose_run(["conf=mine"], [user_conf]), path)
    path.write_text(path.read_text().replace("seed: 0", "sede: 0").replace("batch_size: auto", "batch_size: x"))
    with pytest.raises(ConfigError) as caught:
        read_run(path)
    assert str(caught.value).splitlines() == [
        f"{path}: train.batch_size=x: expected auto or a whole number above 0",
        f"{path}: sede=0: no such key; did you mean seed (a whole number of at least 0)?",
    ]
    path.write_text("a: [")
    with pytest.raises(ConfigError, match=r"/config\.yaml: cannot be read, while parsing"):
        read_run(path)


def test_a_key_of_a_file_with_dots_is_shown_nested(tmp_path: Path) -> None:
    (tmp_path / "dots.yaml").write_text("defaults: [base, _self_]\noptimizer.dense.lr: 0.1\n")
    with pytest.raises(ConfigError, match=r"optimizer: {dense: {lr: \.\.\.}}$"):
        compose_run([f"conf={tmp_path / 'dots.yaml'}"])


def test_keys_below_a_value_that_replaces_a_group_count_too() -> None:
    """A sweep over dataset.split.offset would otherwise train one fold again and again."""
    words = ["dataset.split={kind: every, n: 5}", "dataset.split.offset=3"]
    assert [compose_run(each).dataset.split.offset for each in (words, words[::-1])] == [3, 3]
