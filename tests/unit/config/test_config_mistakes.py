"""Every kind of mistake in arguments and files is reported in one sentence, all of them at once."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

Told = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("model.dimm=32", "model.dimm=32: no such key; did you mean model.dim (a whole number above 0"),
        ("batch_size=5", "batch_size=5: no such key; did you mean train.batch_size (auto or a whole number above 0)?"),
        ("modl.dim=3", "modl.dim=3: no such key; did you mean model.dim (a whole number above 0 and at most 1024)?"),
        ("optimizer.lr=3", "optimizer.lr=3: no such key; did you mean optimizer.embedding.lr (auto or a number"),
        ("modle=dlrm", "modle=dlrm: no such key; did you mean model?"),
        ("train.wombat=1", "train.wombat=1: no such key; there are batch_size, accumulate, epochs, steps, until,"),
        ("train.batch_size=abc", "train.batch_size=abc: expected auto or a whole number above 0"),
        ("eval.retrieval.at=5", "eval.retrieval.at: eval.retrieval is a list, so it has no such key; give the whole"),
        ("train.batch_size=0", "train.batch_size=0: expected auto or a whole number above 0"),
        ("checkpoint.at_end=maybe", "checkpoint.at_end=maybe: expected true or false"),
        ("model.hidden=5", "model.hidden=5: expected a list of whole numbers above 0"),
        ("model.hidden=[8,x]", "model.hidden[1]=x: expected a whole number above 0"),
        ("cluster.transport=udp", "cluster.transport=udp: expected ipc or tcp"),
        ("embedding.memory=2XB", "embedding.memory=2XB: expected a size such as 512MiB or 2GiB"),
        ("embedding.tables.a.optimizer={kind: adm}", "embedding.tables.a.optimizer.kind=adm: expected sgd, adagrad,"),
        ("optimizer.dense.kind=ftrl", "optimizer.dense.kind=ftrl: ftrl is for embedding rows only; the dense network"),
        ("train.device=gpu", "train.device=gpu: expected auto, cpu, cuda or cuda:N"),
        ("train.losses.lable={kind: bce}", "train.losses.lable: no label has this name; did you mean label?"),
        ("train.losses.label={kind: bec}", "train.losses.label.kind=bec: expected bce, focal, pairwise, bpr,"),
        ("train.pos_weight=3", "train.pos_weight=3: no such key; the weight of a label's positive samples is in its"),
        ("train.losses.label={kind: focal, pos_weight: 3}", "train.losses.label.pos_weight=3: no such key where"),
        ("train.task_weights=uncertainty", "train.task_weights=uncertainty weighs labels against each other, and"),
        ("optimizer.dense.lr=inf", "optimizer.dense.lr=Infinity: expected a number above 0"),
        ("embedding.tables.a.optimizer={kind: sgd, lr: 1, schedule: {kind: reduce_on_plateau}}", "embedding.tables.a."),
        ("optimizer.dense.schedule={kind: step, factor: 0.5}", "optimizer.dense.schedule.every_steps: needs a value"),
        ("optimizer.dense.schedule={kind: one_cycle, over_steps: 5, warmup_steps: 2}", "optimizer.dense.schedule."),
        ("embedding.cold={path: s3://a, size: 1GiB}", "embedding.cold.path=s3://a: s3://a is a URI; rows that leave"),
        ("embedding={cold: {path: a, size: 1GiB}, when_full: refuse}", "embedding: when_full=refuse lets no row leave"),
        ("embedding.dtype=float61", "embedding.dtype=float61: expected float32, bfloat16, float16 or int8; did"),
        ("embedding.admission=0", "embedding.admission=0: expected a number above 0 and at most 1 or keys (min_count)"),
        ("embedding.tables={a: {share: 0.7}, b: {share: 0.6}}", "embedding.tables.a.share + embedding.tables.b.share"),
        ("embedding.tables.a={admission: 0.5, hash_stack: {rounds: 2, size: 9}}", "embedding.tables.a: a hash_stack"),
        ("model.kind=dlmr", "model.kind=dlmr: expected ffnn, dlrm, dcn_v2, "),
        ("train=5", "train=5: expected keys (batch_size, accumulate, epochs, steps, until,"),
        ("name=a b", "name=a b: expected only letters, digits, '.', '_' and '-', since the name is used for a folder"),
        ("mode.staleness=0", "mode.staleness=0: expected a whole number of at least 1 and at most 1024"),
        ("~model", "model: needs keys with kind: ffnn, dlrm, dcn_v2, "),
        ("~model.dim", "model.dim: needs a value (a whole number above 0 and at most 1024); give model.dim=..."),
        ("~model.kind", "model.kind: needs a value (ffnn, dlrm, dcn_v2, "),
        ("~model.dimm", "~model.dimm: no such key; did you mean model.dim (a whole number above 0 and at most 1024)?"),
        ("model={kind: dcn_v2, dim: 4, layers: 2, experts: 3, hidden: [5]}", "model: experts are of low rank; give"),
        ("model={kind: finalmlp, dim: 4, first: [9, 8], second: [6], heads: 4}", "model: heads=4 cut the last layer"),
        ("model={kind: din, dim: 4, attend: {item: []}, attention: [8], hidden: [8]}", "model: attend needs a target"),
        ("model={kind: finalnet, dim: 4, first: [8], teaching: 1}", "model: teaching=1 needs two blocks"),
        ("name=${nowhere}", "name=${nowhere}: cannot be resolved, Interpolation key 'nowhere' not found"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value(mistakes: Told, word: str, sentence: str) -> None:
    [told] = mistakes(word)
    assert told.startswith(sentence)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("criteo", "'criteo' is not KEY=VALUE; did you mean conf=criteo?"),
        ("dlrm", "'dlrm' is not KEY=VALUE; did you mean model=dlrm?"),
        ("wombat", "'wombat' is not KEY=VALUE"),
        ("=5", "'=5' has no key before the ="),
        ("a b=1", "a b=1: 'a b' is not a key such as train.batch_size"),
        ("hydra.verbose=1", "hydra.verbose=1: persia has no hydra keys; --run-dir sets the folder of a run"),
        ("model.hidden=[1", "model.hidden=[1: the value cannot be read; is a bracket or quote left open?"),
        ("seed=1,2", "seed=1,2: expected one value; to try several in turn: persia sweep seed=1,2"),
        ("model=dlmr", "model=dlmr: expected afm, autoint, branches, "),
        ("mode=", "mode=: expected async, hybrid or sync"),
    ],
)
def test_a_word_that_is_no_override(mistakes: Told, word: str, sentence: str) -> None:
    [told] = mistakes(word)
    assert told.startswith(sentence)


def test_a_key_of_another_kind_names_that_kind(mistakes: Told) -> None:
    at = "optimizer.dense.schedule"
    assert sorted(mistakes("mode=sync", "mode.staleness=3", f"{at}.every_steps=3")) == [
        "mode.staleness=3: no such key where mode.kind=sync; mode.kind=hybrid or async has it",
        f"{at}.every_steps=3: no such key where {at}.kind=constant; {at}.kind=step has it",
    ]


@pytest.mark.parametrize(
    ("kind", "key", "owner"),
    [
        ("adagrad", "l1", "ftrl"),
        ("ftrl", "beta2", "adam or rowwise_adam"),
    ],
)
def test_a_setting_that_an_optimizer_does_not_have(mistakes: Told, kind: str, key: str, owner: str) -> None:
    at = "optimizer.embedding"
    told = f"{at}.{key}=0.1: no such key where {at}.kind={kind}; {at}.kind={owner} has it"
    assert mistakes(f"{at}.kind={kind}", f"{at}.{key}=0.1") == [told]


def test_rows_begin_within_the_bound_of_weights(mistakes: Told) -> None:
    for init, bound in (
        ("embedding.init_bound=0.5", "embedding.weight_bound=0.1"),
        ("embedding.tables.a.init_bound=2", "embedding.weight_bound=1"),
        ("embedding.init_bound=0.01", "embedding.tables.a.weight_bound=0.001"),
    ):
        [told] = mistakes(init, bound)
        assert told.removeprefix("embedding: ").startswith(f"{init} is above {bound}: ")


def test_all_mistakes_are_reported_at_once(mistakes: Told) -> None:
    told = mistakes("criteo", "model=dlmr", "model.bottom=x", "train.steps=0", "nmae=x", "seed=1,2")
    assert [line.partition(":")[0].partition(";")[0] for line in told] == [
        "'criteo' is not KEY=VALUE", "model=dlmr", "seed=1,2", "train.steps=0", "nmae=x",
    ]  # fmt: skip
    assert told[1].endswith("; did you mean dlrm?")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train.batch_size=3 cluster.nn_workers=2", "train.batch_size=3 is not a multiple of cluster.nn_workers=2;"),
        ("cluster=embedded cluster.nn_workers=2", "cluster=embedded runs in one process and has exactly one NN worker"),
        ("train.batch_size=30 train.accumulate=4", "train.batch_size=30 is not a multiple of train.accumulate=4;"),
        ("train.batch_size=30 train.accumulate=10 cluster.nn_workers=2", "train.batch_size=30 is not a multiple of"),
        (
            "conf=criteo train.accumulate=2 train.losses.label.kind=bpr",
            "train.accumulate=2: train.losses.label.kind=bpr",
        ),
    ],
)
def test_settings_that_contradict_each_other(mistakes: Told, words: str, sentence: str) -> None:
    [told] = mistakes(*words.split())
    assert told.startswith(sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train.stop_early.metric=acu eval.every_steps=5", "metric=acu: no such metric; did you mean auc"),
        ("checkpoint.best_by=recall@10 eval.every_steps=5", r"a retrieval metric, .*; set eval.retrieval=\[10\]$"),
        ("train.stop_early.metric=hr@20 eval.every_steps=5 eval.retrieval=[10]", r"set eval.retrieval=\[10, 20\]$"),
        ("checkpoint.best_by=mrr eval.retrieval=[10] train.epochs=1", "best_by=mrr .*; set eval.every_epochs=1$"),
        (
            "eval.retrieval=[]",
            r"eval.retrieval=\[\]: expected auto or a list of whole numbers above 0, not empty or null",
        ),
        ("train.stop_early.metric=ne train.epochs=1", "metric=ne compares evaluations .*; set eval.every_epochs=1$"),
        ("checkpoint.best_by=gauc eval.every_steps=5", "best_by=gauc needs query ids; set dataset.group_by$"),
        ("optimizer.dense.schedule.kind=reduce_on_plateau train.epochs=1", "metric=auc .*; set eval.every_epochs=1$"),
        ("eval.every_steps=5 eval.every_epochs=1", "eval.every_steps and eval.every_epochs exclude each other"),
        ("train.stop_early.patience=2", "train.stop_early.metric: needs a value"),
    ],
)
def test_metrics_that_nothing_can_be_judged_by(mistakes: Told, words: str, sentence: str) -> None:
    [told] = mistakes(*words.split())
    assert re.search(sentence, told)


def test_conf_itself_is_wrong(mistakes: Told, tmp_path: Path) -> None:
    (tmp_path / "other.yml").write_text("name: x\n")
    for word, sentence in (
        ("conf=criteoo", ": no such configuration; did you mean criteo?"),
        ("conf=wombat", ": no such configuration; there are adult_income, "),
        ("conf=", ": expected the name or path of a configuration; there are adult_income, "),
        ("conf=./wombat.yaml", ": there is no such file"),
        (f"conf={tmp_path / 'other.yml'}", ": the name of a configuration file must end in .yaml"),
    ):
        [told] = mistakes(word)
        assert told.startswith(word + sentence)
    assert mistakes("conf=a", "conf=b") == ["conf= is given 2 times (a and b); give it once"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: a: b\n", "{file}, line 1, column 8: not valid YAML, mapping values are not allowed here"),
        ("name: a\nname: b\n", "{file}, line 2, column 1: not valid YAML, found duplicate key name"),
        ("defaults: [base, override dataset: ./d.yaml]\n", "{file}: its defaults ask for dataset/./d.yaml, which does"),
        ("defaults: [base, override model: dlmr]\n", "{file}: its defaults ask for model/dlmr, which does not exist;"),
        ("defaults: [base, override modle: dlrm]\n", "{file}: its defaults override 'modle', which is not a config"),
        ("defaults: [wrong]\n", "{file}: its defaults refer back to itself; begin the file with defaults: [base,"),
        ("defaults: [base, override dataset: tiny]\nname: ${train.steps\n", "{file}: name: no viable alternative at"),
        ("defaults: [base, override dataset: tiny]\nmodel: {custom: '???'}\n", "model.custom=???: no such key; there"),
        ("defaults: [base, override dataset: tiny]\nmodle: {dim: 3}\n", "modle.dim=3: no such key; did you mean"),
        ("name: alone\n", "{file}: dataset, model, embedding, optimizer, mode, train and cluster are missing; begin"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong(mistakes: Told, user_conf: Path, text: str, sentence: str) -> None:
    file = user_conf / "wrong.yaml"
    file.write_text(text)
    [told] = mistakes("conf=wrong")
    assert told.startswith(sentence.format(file=file))


def test_a_file_that_is_not_text(mistakes: Told, user_conf: Path) -> None:
    (user_conf / "wrong.yaml").write_bytes(b"\xff\xfe\x00")
    assert mistakes("conf=wrong") == [f"{user_conf / 'wrong.yaml'}, or a file in its defaults, is not UTF-8 text"]


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    from persia_cli.config.compose import compose_run
    from persia_cli.errors import ConfigError

    with pytest.raises(ConfigError, match=r"^--conf-dir .*/nowhere: there is no such folder$"):
        compose_run([], [tmp_path / "nowhere"])


HOURS = "dataset.sparse=[education, {name: hours, column: raw_hours_per_week, "


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["optimizer.dense={kind: adamw, lr: 0.1, weight_decay: 11}"], "optimizer.dense: weight_decay=11 times lr=0.1"),
        (["optimizer.embedding={kind: sgd, lr: 0.1, l2: 11}"], "optimizer.embedding: l2=11 times lr=0.1 is above 1"),
        (["model.hidden=[]", "model.norm=batch"], "model.norm=batch is about hidden layers, and model.hidden has none"),
        (["model=dlrm", "model.bottom=[]", "model.top=[]", "model.dropout=0.5"], "model.dropout=0.5 is about hidden"),
        ([HOURS + "buckets: 5, ids: text}]"], "dataset.sparse[1]: the ids of hours are its buckets"),
        (["dataset.labels=[{name: label, positive: []}]"], "dataset.labels[0]: label label would be 0 in every row"),
        (["dataset=synthetic", "dataset.generator={dense: 0, cardinalities: []}"], "generated samples need dense"),
        (["dataset=criteo", "dataset.dense=[I1]"], "dataset.generator has 13 dense and 26 sparse features"),
        (["dataset.csv={delimiter: ';', quote: ';'}"], "dataset.csv: delimiter and quote have the same character"),
        (HOURS + "buckets: 1}]", "sparse[1].buckets=1: expected a whole number of at least 2 or a list of numbers"),
        (HOURS + "buckets: [true, 2]}]", "sparse[1].buckets[0]=true: expected a number"),
        ("dataset.dense=[{name: age, transform: piecewise, bins: [true, 2]}]", "dense[0].bins[0]=true: expected a num"),
        ("dataset.csv.delimiter=;;;", "csv.delimiter=;;;: expected one or two characters or the word tab or null"),
        ("dataset.split={kind: files, train: []}", "split.train=[]: expected a list of texts, not empty"),
        ("model.dropout=[0.1,2]", "model.dropout[1]=2: expected a number of at least 0 and below 1"),
        ("model.hidden=8,16", "for a list write model.hidden=[8,16]; to try several in turn: persia sweep "),
        ("model=null", "model=null: expected afm, autoint"),
        ("dataset.labels={a: 1}", 'dataset.labels={"a": 1}: expected a list of texts'),
        ("embedding=[1]", "embedding=[1]: expected keys (memory"),
        ("hydra.run.dir=x", "--run-dir sets the folder of a run"),
        ("dataset.split={kind: files, train: [day=1/*], eval: [b]}", "quote a value with an equals sign: 'day=1/*'"),
        ("dataset.split={kind: files, train: ['day=1/*']", "is a bracket or quote left open?"),
        ("train.epochs=true", "train.epochs=true: expected auto or a whole number above 0"),
        ("model.hidden=[8,true]", "model.hidden[1]=true: expected a whole number above 0"),
        ("dataset.dense=[age,age]", "dataset.dense lists age twice; list it once"),
        ("dataset.dense=[label]", "dataset.dense and dataset.labels both name label: a label is"),
        ("dataset.group_by=label", "dataset.group_by and dataset.labels both name label"),
        ("dataset.split={kind: column, column: label, train: 0, eval: 1}", "dataset.split and"),
    ],
)
def test_a_wrong_setting_of_a_data_set_or_its_network(mistakes: Told, words: str | list[str], sentence: str) -> None:
    [told] = mistakes("conf=adult_income", *([words] if isinstance(words, str) else words))
    assert sentence in told
