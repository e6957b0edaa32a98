"""Every kind of mistake in arguments and files is reported in one exact sentence, all of them at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

Told = Callable[..., list[str]]

KINDS = (
    "ffnn, lr, fm, afm, wide_deep, deepfm, xdeepfm, fibinet, dlrm, dcn_v2, gdcn, autoint, masknet, finalmlp, "
    "finalnet, din, dien, bst, sasrec, two_tower, mmoe, ple, esmm, branches or custom"
)
GROUPS = (
    "afm, autoint, branches, bst, custom, dcn_v2, dcn_v2_mix, deepfm, dien, din, din_taobao, dlrm, esmm, ffnn, "
    "ffnn_paper, ffnn_small, fibinet, finalmlp, finalnet, fm, gdcn, lr, masknet, mmoe, ple, sasrec, two_tower, "
    "wide_deep or xdeepfm"
)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("model.dimm=32", "model.dimm=32: no such key; did you mean model.dim (a whole number above 0 "
         "and at most 1024)?"),
        ("batch_size=5", "batch_size=5: no such key; did you mean train.batch_size (a whole number above 0)?"),
        ("modl.dim=3", "modl.dim=3: no such key; did you mean model.dim (a whole number above 0 and at most 1024)?"),
        ("optimizer.lr=3", "optimizer.lr=3: no such key; did you mean optimizer.embedding.lr (a number above 0)?"),
        ("modle=dlrm", "modle=dlrm: no such key; did you mean model?"),
        ("train.wombat=1", "train.wombat=1: no such key; there are batch_size, accumulate, epochs, steps, threads, "
         "losses, task_weights, precision, device, compile, log_every_steps, trace_steps, "
         "tensorboard and stop_early"),
        ("train.batch_size=abc", "train.batch_size=abc: expected a whole number above 0"),
        ("eval.retrieval.at=5", "eval.retrieval.at: eval.retrieval is a list, so it has no such key; give the whole "
         "list, eval.retrieval=[...]"),
        ("train.batch_size=0", "train.batch_size=0: expected a whole number above 0"),
        ("train.batch_size=1.5", "train.batch_size=1.5: expected a whole number above 0"),
        ("train.batch_size=null", "train.batch_size=null: expected a whole number above 0"),
        ("train.steps=many", "train.steps=many: expected a whole number above 0 or null"),
        ("seed=-1", "seed=-1: expected a whole number of at least 0"),
        ("checkpoint.at_end=maybe", "checkpoint.at_end=maybe: expected true or false"),
        ("model.hidden=5", "model.hidden=5: expected a list of whole numbers above 0"),
        ("model.hidden=[8,x]", "model.hidden[1]=x: expected a whole number above 0"),
        ("cluster.transport=udp", "cluster.transport=udp: expected ipc or tcp"),
        ("cluster.retry_s=0", "cluster.retry_s=0: expected a number above 0"),
        ("embedding.memory=2XB", "embedding.memory=2XB: expected a size such as 512MiB or 2GiB"),
        ("embedding.memory=-1", "embedding.memory=-1: expected a size such as 512MiB or 2GiB"),
        ("embedding.tables.a.dim=0", "embedding.tables.a.dim=0: expected a whole number above 0 and at most 1024 "
         "or null"),
        ("embedding.tables.a.optimizer={kind: adm}", "embedding.tables.a.optimizer.kind=adm: expected sgd, adagrad, "
         "rowwise_adagrad, adam, rowwise_adam or ftrl; did you mean adam?"),
        ("optimizer.dense.kind=ftrl", "optimizer.dense.kind=ftrl: ftrl is for embedding rows only; the dense network "
         "takes sgd, adagrad, adam or adamw"),
        ("optimizer.dense={kind: rowwise_adagrad, lr: 1}", "optimizer.dense.kind=rowwise_adagrad: rowwise_adagrad is "
         "for embedding rows only; the dense network takes sgd, adagrad, adam or adamw"),
        ("optimizer.dense.kind=adagard", "optimizer.dense.kind=adagard: expected sgd, adagrad, adam or adamw; "
         "did you mean adagrad?"),
        ("optimizer.embedding.kind=adamw", "optimizer.embedding.kind=adamw: expected sgd, adagrad, rowwise_adagrad, "
         "adam, rowwise_adam or ftrl; did you mean adam?"),
        ("optimizer.dense.clip_norm=0", "optimizer.dense.clip_norm=0: expected a number above 0 or null"),
        ("train.precision=fp16", "train.precision=fp16: expected float32, bfloat16 or float16"),
        ("train.device=gpu", "train.device=gpu: expected auto, cpu, cuda or cuda:N"),
        ("train.device=cuda:x", "train.device=cuda:x: expected auto, cpu, cuda or cuda:N"),
        ("train.losses.lable={kind: bce}", "train.losses.lable: no label has this name; did you mean label?"),
        ("train.losses.wombat={kind: bce}", "train.losses.wombat: no label has this name; there are label"),
        ("train.losses.label={kind: bec}", "train.losses.label.kind=bec: expected bce, focal, pairwise, bpr, "
         "in_batch_softmax, mse, huber or poisson; did you mean bce?"),
        ("train.losses.label.pos_weight=0", "train.losses.label.pos_weight=0: expected a number above 0"),
        ("train.pos_weight=3", "train.pos_weight=3: no such key; the weight of a label's positive samples is in its "
         "loss: train.losses={LABEL: {kind: bce, pos_weight: 3}}"),
        ("dataset.scale_pos_weight=3", "dataset.scale_pos_weight=3: no such key; the weight of a label's positive "
         "samples is in its loss: train.losses={LABEL: {kind: bce, pos_weight: 3}}"),
        ("train.losses.label={kind: focal, pos_weight: 3}", "train.losses.label.pos_weight=3: no such key where "
         "train.losses.label.kind=focal; train.losses.label.kind=bce has it"),
        ("train.losses.label={kind: focal, alpha: 1}", "train.losses.label.alpha=1: expected a number above 0 and "
         "below 1 or null"),
        ("train.losses.label={kind: focal, gamma: 1000}", "train.losses.label.gamma=1000: expected a number of at "
         "least 0 and at most 100"),
        ("train.losses.label={kind: bce, gamma: 1}", "train.losses.label.gamma=1: no such key where "
         "train.losses.label.kind=bce; train.losses.label.kind=focal has it"),
        ("train.task_weights=uncertainty", "train.task_weights=uncertainty weighs labels against each other, and label "
         "is alone; leave it out"),
        ("train.losses={label: {kind: bce, weight: 0}}", "train.losses gives every label the weight 0; at least one "
         "needs more"),
        ("optimizer.dense.lr=inf", "optimizer.dense.lr=Infinity: expected a number above 0"),
        ("optimizer.dense.schedule.kind=linear", "optimizer.dense.schedule.kind=linear: expected constant, step, "
         "cosine, one_cycle or reduce_on_plateau"),
        ("optimizer.embedding.schedule={kind: reduce_on_plateau, factor: 1}", "optimizer.embedding.schedule.factor=1: "
         "expected a number above 0 and below 1"),
        ("embedding.tables.a.optimizer={kind: sgd, lr: 1, schedule: {kind: reduce_on_plateau}}", "embedding.tables.a."
         "optimizer.schedule.kind=reduce_on_plateau: all tables that evaluations slow down do so together; give the "
         "schedule to optimizer.embedding, or the table another"),
        ("optimizer.dense.schedule={kind: step, factor: 0.5}", "optimizer.dense.schedule.every_steps: needs a value (a "
         "whole number above 0); give optimizer.dense.schedule.every_steps=..."),
        ("optimizer.embedding.schedule={kind: step, every_steps: 5, factor: 1.5}", "optimizer.embedding.schedule.factor"
         "=1.5: expected a number above 0 and at most 1"),
        ("optimizer.dense.schedule={kind: one_cycle, over_steps: 5, warmup_steps: 2}", "optimizer.dense.schedule."
         "warmup_steps=2: no such key where optimizer.dense.schedule.kind=one_cycle; optimizer.dense.schedule.kind="
         "constant, step, cosine or reduce_on_plateau has it"),
        ("optimizer.embedding.schedule={kind: cosine, over_steps: 5, floor: -1}", "optimizer.embedding.schedule.floor"
         "=-1: expected a number of at least 0 and at most 1"),
        ("embedding.dtype=float61", "embedding.dtype=float61: expected float32, bfloat16 or float16; did you mean "
         "float16?"),
        ("embedding.wire=int8", "embedding.wire=int8: expected float32, bfloat16 or float16"),
        ("embedding.when_full=refise", "embedding.when_full=refise: expected auto, evict_lfu, evict_lru or refuse; "
         "did you mean refuse?"),
        ("embedding.admission=0", "embedding.admission=0: expected a number above 0 and at most 1 or keys (min_count)"),
        ("embedding.clip_norm=0", "embedding.clip_norm=0: expected a number above 0 or null"),
        ("embedding.weight_bound=inf", "embedding.weight_bound=Infinity: expected a number above 0 or null"),
        ("embedding.tables.a.share=1", "embedding.tables.a.share=1: expected a number above 0 and below 1 or null"),
        ("embedding.tables={a: {share: 0.7}, b: {share: 0.6}}", "embedding.tables.a.share + embedding.tables.b.share = "
         "1.3; the shares of all tables must add up to at most 1"),
        ("embedding.tables.a.hash_stack={rounds: 17, size: 9}", "embedding.tables.a.hash_stack.rounds=17: expected a "
         "whole number of at least 1 and at most 16"),
        ("embedding.tables.a.hash_stack={rounds: 2, size: 0}", "embedding.tables.a.hash_stack.size=0: expected a whole "
         "number of at least 1"),
        ("embedding.tables.a.hash_stack={rounds: 2}", "embedding.tables.a.hash_stack.size: needs a value (a whole "
         "number of at least 1); give embedding.tables.a.hash_stack.size=..."),
        ("embedding.tables.a={admission: 0.5, hash_stack: {rounds: 2, size: 9}}", "embedding.tables.a: a hash_stack "
         "has rows for every id, so give it or admission, not both"),
        ("model.kind=dlmr", f"model.kind=dlmr: expected {KINDS}; did you mean dlrm?"),
        ("train=5", "train=5: expected keys (batch_size, accumulate, epochs, steps, threads, "
         "losses, task_weights, precision, device, compile, log_every_steps, trace_steps, "
         "tensorboard, stop_early)"),
        ("name=a b", "name=a b: expected only letters, digits, '.', '_' and '-', since the name is used for a folder"),
        ("mode.staleness=0", "mode.staleness=0: staleness counts the step in flight itself, so it is at least 1 (1 "
         "with one rank is sync)"),
        ("~model", f"model: needs keys with kind: {KINDS}"),
        ("~model.dim", "model.dim: needs a value (a whole number above 0 and at most 1024); give model.dim=..."),
        ("~model.kind", f"model.kind: needs a value ({KINDS})"),
        ("~model.dimm", "~model.dimm: no such key; did you mean model.dim (a whole number above 0 and at most 1024)?"),
        ("model={kind: dcn_v2, dim: 4, layers: 2, experts: 3, hidden: [5]}", "model: experts are of low rank; give "
         "model.rank, for example 64"),
        ("model={kind: finalmlp, dim: 4, first: [9, 8], second: [6], heads: 4}", "model: heads=4 cut the last layer of "
         "each stream into equal parts, and the last of model.second has 6 columns; make it a multiple"),
        ("model={kind: din, dim: 4, attend: {item: []}, attention: [8], hidden: [8]}", "model: attend needs a target "
         "and its sequences, e.g. model.attend={item: [last_items]}"),
        ("model={kind: finalnet, dim: 4, first: [8], teaching: 1}", "model: teaching=1 is of two blocks that learn "
         "from each other; give model.second its layers, or set model.teaching=0"),
        ("model={kind: mmoe, dim: 4, experts: 2, expert: [], tower: [8]}", "model.expert=[]: expected a list of whole "
         "numbers above 0, not empty"),
        ("name=${nowhere}", "name=${nowhere}: cannot be resolved, Interpolation key 'nowhere' not found"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value(mistakes: Told, word: str, sentence: str) -> None:
    assert mistakes(word) == [sentence]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("criteo", "'criteo' is not KEY=VALUE; did you mean conf=criteo?"),
        ("creteo", "'creteo' is not KEY=VALUE; did you mean conf=criteo?"),
        ("dlrm", "'dlrm' is not KEY=VALUE; did you mean model=dlrm?"),
        ("./my.yaml", "'./my.yaml' is not KEY=VALUE; did you mean conf=./my.yaml?"),
        ("wombat", "'wombat' is not KEY=VALUE"),
        ("=5", "'=5' has no key before the ="),
        ("a b=1", "a b=1: 'a b' is not a key such as train.batch_size"),
        ("train/epochs=1", "train/epochs=1: 'train/epochs' is not a key such as train.batch_size"),
        ("dataset@x=tiny", "dataset@x=tiny: 'dataset@x' is not a key such as train.batch_size"),
        ("hydra.verbose=1", "hydra.verbose=1: persia has no hydra keys; --run-dir sets the folder of a run"),
        ("model.hidden=[1", "model.hidden=[1: the value cannot be read; is a bracket or quote left open?"),
        ("seed=1,2", "seed=1,2: expected one value; to try several in turn: persia sweep seed=1,2"),
        ("model=dlmr", f"model=dlmr: expected {GROUPS}; did you mean dlrm?"),
        ("mode=", "mode=: expected async, hybrid or sync"),
    ],
)
def test_a_word_that_is_no_override(mistakes: Told, word: str, sentence: str) -> None:
    assert mistakes(word) == [sentence]


def test_a_key_of_another_kind_names_that_kind(mistakes: Told) -> None:
    sentence = "mode.staleness=3: no such key where mode.kind=sync; mode.kind=hybrid or async has it"
    assert mistakes("mode=sync", "mode.staleness=3") == [sentence]


@pytest.mark.parametrize(
    ("kind", "key", "owner"),
    [
        ("ftrl", "weight_decay", "sgd, adagrad, rowwise_adagrad, adam or rowwise_adam"),
        ("adam", "initial_accumulator_value", "adagrad, rowwise_adagrad or ftrl"),
        ("adagrad", "l1", "ftrl"),
        ("ftrl", "eps", "adagrad, rowwise_adagrad, adam or rowwise_adam"),
        ("rowwise_adam", "beta1", "adam"),
    ],
)
def test_a_setting_that_an_optimizer_does_not_have(mistakes: Told, kind: str, key: str, owner: str) -> None:
    at = "optimizer.embedding"
    told = f"{at}.{key}=0.1: no such key where {at}.kind={kind}; {at}.kind={owner} has it"
    assert mistakes(f"{at}.kind={kind}", f"{at}.{key}=0.1") == [told]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["embedding.init_bound=0.5", "embedding.weight_bound=0.1"],
            "embedding.init_bound=0.5 is above embedding.weight_bound=0.1",
        ),
        (
            ["embedding.tables.a.init_bound=2", "embedding.weight_bound=1"],
            "embedding.tables.a.init_bound=2 is above embedding.weight_bound=1",
        ),
        (
            ["embedding.tables.a.weight_bound=0.001"],
            "embedding.init_bound=0.01 is above embedding.tables.a.weight_bound=0.001",
        ),
    ],
)
def test_rows_begin_within_the_bound_of_weights(mistakes: Told, words: list[str], told: str) -> None:
    assert [line.removeprefix("embedding: ") for line in mistakes(*words)] == [
        f"{told}: new rows must begin within the bound of weights"
    ]


def test_a_setting_of_another_schedule(mistakes: Told) -> None:
    at = "optimizer.dense.schedule"
    told = f"{at}.every_steps=3: no such key where {at}.kind=constant; {at}.kind=step has it"
    assert mistakes(f"{at}.every_steps=3") == [told]


def test_all_mistakes_are_reported_at_once(mistakes: Told) -> None:
    assert mistakes("criteo", "model=dlmr", "model.bottom=x", "train.steps=0", "nmae=x", "seed=1,2") == [
        "'criteo' is not KEY=VALUE; did you mean conf=criteo?",
        f"model=dlmr: expected {GROUPS}; did you mean dlrm?",
        "seed=1,2: expected one value; to try several in turn: persia sweep seed=1,2",
        "train.steps=0: expected a whole number above 0 or null",
        "nmae=x: no such key; did you mean name (text)?",
    ]


def test_settings_that_contradict_each_other(mistakes: Told) -> None:
    assert mistakes("train.batch_size=3", "cluster.nn_workers=2") == [
        "train.batch_size=3 is not a multiple of cluster.nn_workers=2; change one of them"
    ]
    assert mistakes("cluster=embedded", "cluster.nn_workers=2") == [
        "cluster=embedded runs in one process and has exactly one NN worker, not 2; use cluster=local for more"
    ]
    assert mistakes("train.batch_size=30", "train.accumulate=4") == [
        "train.batch_size=30 is not a multiple of train.accumulate=4; change one of them"
    ]
    assert mistakes("train.batch_size=30", "train.accumulate=10", "cluster.nn_workers=2") == [
        "train.batch_size=30 is not a multiple of train.accumulate=10 times cluster.nn_workers=2; change one of them"
    ]


@pytest.mark.parametrize("kind", ["pairwise", "bpr"])
def test_losses_that_compare_samples_are_not_computed_in_parts(mistakes: Told, kind: str) -> None:
    assert mistakes("conf=criteo", "train.accumulate=2", f"train.losses={{label: {{kind: {kind}}}}}") == [
        f"train.accumulate=2: train.losses.label.kind={kind} compares the samples of a step with each other, and a "
        "part has only some of them; leave out train.accumulate"
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["train.stop_early={metric: acu}", "eval.every_steps=5"],
            "train.stop_early.metric=acu: no such metric; did you mean auc? there are auc, pr_auc, accuracy, log_loss, "
            "ne, calibration, auc_minus_log_loss, loss",
        ),
        (
            ["checkpoint.best_by=recall@10", "eval.every_steps=5"],
            "checkpoint.best_by=recall@10 is a retrieval metric, which evaluations do not compute unless they are "
            "asked to; set eval.retrieval=[10]",
        ),
        (
            ["train.stop_early={metric: hr@20}", "eval={every_steps: 5, retrieval: [100, 10, 10]}"],
            "train.stop_early.metric=hr@20 is a retrieval metric, which evaluations do not compute unless they are "
            "asked to; set eval.retrieval=[10, 20, 100]",
        ),
        (
            ["checkpoint.best_by=mrr", "eval.retrieval=[10]", "train.epochs=1"],
            "checkpoint.best_by=mrr compares evaluations during training; set eval.every_epochs=1",
        ),
        (["eval.retrieval=[]"], "eval.retrieval=[]: expected a list of whole numbers above 0, not empty or null"),
        (
            ["train.stop_early={metric: ne}", "train.epochs=1"],
            "train.stop_early.metric=ne compares evaluations during training; set eval.every_epochs=1",
        ),
        (
            ["checkpoint.best_by=gauc", "eval.every_steps=5"],
            "checkpoint.best_by=gauc needs query ids; set dataset.group_by",
        ),
        (
            ["checkpoint.best_by=ne", "train.steps=9"],
            "checkpoint.best_by=ne compares evaluations during training; set eval.every_epochs=1",
        ),
        (
            ["optimizer.dense.schedule.kind=reduce_on_plateau", "train.epochs=1"],
            "optimizer.dense.schedule.kind=reduce_on_plateau, metric=auc compares evaluations during training; set "
            "eval.every_epochs=1",
        ),
        (
            ["eval.every_steps=5", "eval.every_epochs=1"],
            "eval.every_steps and eval.every_epochs exclude each other; set one of them to null",
        ),
        (
            ["train.stop_early.patience=2"],
            "train.stop_early.metric: needs a value (text); give train.stop_early.metric=...",
        ),
        (
            ["train.stop_early={metric: auc, patience: 0}", "eval.every_steps=5"],
            "train.stop_early.patience=0: expected a whole number above 0",
        ),
    ],
)
def test_metrics_that_nothing_can_be_judged_by(mistakes: Told, words: list[str], sentence: str) -> None:
    assert mistakes(*words) == [sentence]


def test_conf_itself_is_wrong(mistakes: Told, user_conf: Path, tmp_path: Path) -> None:
    assert mistakes("conf=criteoo") == ["conf=criteoo: no such configuration; did you mean criteo?"]
    there = (
        "there are adult_income, adult_income_original, avazu, avazu_x1, avazu_x4, base, criteo, criteo_1tb, "
        "criteo_x1, criteo_x4, mine, movielens_100k, movielens_1m, movielens_25m, synthetic and taobao"
    )
    assert mistakes("conf=wombat") == [f"conf=wombat: no such configuration; {there}"]
    assert mistakes("conf=") == [f"conf=: expected the name or path of a configuration; {there}"]
    assert mistakes("conf=a", "conf=b") == ["conf= is given 2 times (a and b); give it once"]
    assert mistakes("conf=./wombat.yaml") == ["conf=./wombat.yaml: there is no such file"]
    other = tmp_path / "other.yml"
    other.write_text("name: x\n")
    assert mistakes(f"conf={other}") == [f"conf={other}: the name of a configuration file must end in .yaml"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: a: b\n", "{file}, line 1, column 8: not valid YAML, mapping values are not allowed here"),
        ("name: a\nname: b\n", "{file}, line 2, column 1: not valid YAML, found duplicate key name"),
        ("defaults: [base, override dataset: ./d.yaml]\n", "{file}: its defaults ask for dataset/./d.yaml, which does "
         "not exist among persia's own; your own file needs a separate key next to defaults: dataset: ./d.yaml"),
        ("defaults: [bsae]\n", "{file}: its defaults ask for bsae, which does not exist; did you mean base?"),
        ("defaults: [base, override model: dlmr]\n", "{file}: its defaults ask for model/dlmr, which does not exist; "
         "did you mean model/dlrm?"),
        ("defaults: [base, override modle: dlrm]\n", "{file}: its defaults override 'modle', which is not a config "
         "group; did you mean model?"),
        ("defaults: [wrong]\n", "{file}: its defaults refer back to itself; begin the file with defaults: [base, "
         "_self_]"),
        ("defaults: [base, override dataset: tiny]\nname: ${train.steps\n", "{file}: name: no viable alternative at "
         "input '${{train.steps'"),
        ("defaults: [base, override dataset: tiny]\nmodel: {custom: '???'}\n", "model.custom=???: no such key; there "
         "are kind, dim, embedding_dropout, output_bias, activation, norm, dropout, init, bias, dense and hidden"),
        ("defaults: [base, override dataset: tiny]\nmodle: {dim: 3}\n", "modle.dim=3: no such key; did you mean "
         "model.dim (a whole number above 0 and at most 1024)?"),
        ("name: alone\n", "{file}: dataset, model, embedding, optimizer, mode, train and cluster are missing; begin "
         "the file with defaults: [base, _self_]"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong(mistakes: Told, user_conf: Path, text: str, sentence: str) -> None:
    file = user_conf / "wrong.yaml"
    file.write_text(text)
    assert mistakes("conf=wrong") == [sentence.format(file=file)]


def test_a_file_that_is_not_text(mistakes: Told, user_conf: Path) -> None:
    (user_conf / "wrong.yaml").write_bytes(b"\xff\xfe\x00")
    assert mistakes("conf=wrong") == [f"{user_conf / 'wrong.yaml'}, or a file in its defaults, is not UTF-8 text"]


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    from persia_cli.config.compose import compose_run
    from persia_cli.errors import ConfigError

    with pytest.raises(ConfigError, match=r"^--conf-dir .*/nowhere: there is no such folder$"):
        compose_run([], [tmp_path / "nowhere"])
