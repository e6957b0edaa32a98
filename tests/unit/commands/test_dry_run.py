"""`--dry-run` prints the plan and starts nothing."""

import re
from pathlib import Path


def test_the_plan(persia) -> None:
    words = ("dataset=tiny", "name=plan", "train.batch_size=100", "cluster.embedding_servers=2", "model.dim=4")
    ended = persia("train", *words, "--run-dir", "out/run", "--dry-run", "--verbose")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "run       plan in out/run"
    assert "600 training and 200 evaluation samples; 2 dense and 2 sparse features, 1 label" in lines[2]
    assert lines[3] == "model     ffnn, dim 4, hidden 400-400-400"
    assert lines[5].startswith("training  6 steps of 100 samples; hybrid, staleness 3; adagrad 0.05 for rows")
    assert lines[6] == "saving    every 10 minutes, at the end; after a crash training goes on from the newest one"
    assert lines[7] == (
        "cluster   local: 1 coordinator, 2 embedding-server, 1 embedding-worker, 1 data-loader, 1 nn-worker"
    )
    assert re.search(r"^table +dim +dtype +optimizer +rows up to +memory$", ended.out, re.MULTILINE)
    assert re.search(r"^all +1\.0 GiB$", ended.out, re.MULTILINE)
    assert "persia config model, with the same arguments, counts its weights" in " ".join(ended.out.split())
    commands = [line.strip() for line in lines if line.startswith("  persia launch-role ")]
    conf = f"{' '.join(words)} --conf-dir"
    assert commands[0].startswith(
        f"persia launch-role coordinator --coordinator ADDRESS --index 0 --run-dir out/run {conf}"
    )
    assert commands[1:] == [
        f"persia launch-role {replica} --coordinator ADDRESS --index {index} --token-file out/run/token"
        for replica, index in [
            ("embedding-server", 0),
            ("embedding-server", 1),
            ("embedding-worker", 0),
            ("data-loader", 0),
            ("nn-worker", 0),
        ]
    ]
    assert not Path("out").exists()


def test_tables_are_shown_as_they_will_be_kept(persia) -> None:
    tables = "{feature_0: {dim: 4, dtype: bfloat16, share: 0.25}, feature_1: {hash_stack: {rounds: 2, size: 50}}}"
    words = ("optimizer=rowwise_adagrad", "embedding.capacity=100000", f"embedding.tables={tables}")
    ended = persia("train", "dataset=tiny", *words, "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    rows = [line.split() for line in ended.out.splitlines() if line.startswith("feature_")]
    assert [row[:5] for row in rows] == [
        ["feature_0", "4", "bfloat16", "rowwise_adagrad", "25,000"],
        ["feature_1", "16", "float32", "rowwise_adagrad", "100"],
    ]


def test_tables_of_equal_rows_are_shown_with_their_common_capacity(persia) -> None:
    ended = persia("train", "dataset=tiny", "embedding.capacity=1000", "--dry-run", "--verbose")
    assert (ended.code, ended.err) == (0, "")
    shown = [line.split() for line in ended.out.splitlines() if line.startswith(("feature_", "these"))]
    assert shown[:2] == [[name, "16", "float32", "adagrad"] for name in ("feature_0", "feature_1")]
    assert shown[2][:7] == ["these", "2", "together", "16", "float32", "adagrad", "1,000"]


def test_equal_tables_are_one_line_without_commands(persia) -> None:
    ended = persia("train", "conf=criteo", "embedding.capacity=1000", "--dry-run")
    assert ended.code == 0
    [line] = [line for line in ended.out.splitlines() if line.startswith("C1 ")]
    assert line.split()[:8] == ["C1", "…", "C26:", "26", "tables", "16", "float32", "adagrad"]
    assert "launch-role" not in ended.out


def test_schedules_are_shown_where_there_are_any(persia) -> None:
    rows = "optimizer.embedding.schedule={kind: step, warmup_steps: 10, every_steps: 1000, factor: 0.5}"
    dense = "optimizer.dense.schedule={kind: cosine, over_steps: 2000, floor: 0.1}"
    ended = persia("train", "dataset=tiny", rows, dense, "--dry-run")
    assert (
        "; adagrad 0.05 (10 steps warm-up, x 0.5 every 1,000 steps) for rows, "
        "adam 0.001 (cosine to 0.1 over 2,000 steps) for dense weights; seed 0\n"
    ) in ended.out
    once = "optimizer.dense.schedule={kind: one_cycle, over_steps: 900}"
    penalties = ["optimizer.embedding.l2=1e-5", "optimizer.dense.l2=0.01"]
    ended = persia("train", "dataset=tiny", once, *penalties, "--dry-run")
    assert "(l2 1e-05)" in ended.out
    assert "(one cycle over 900 steps, l2 0.01)" in ended.out
    ended = persia("train", "dataset=tiny", "optimizer.dense.schedule.warmup_steps=1", "--dry-run")
    assert "; adagrad 0.05 for rows, adam 0.001 (1 step warm-up) for dense weights; seed 0\n" in ended.out


def test_made_up_data_is_announced_with_the_way_to_the_real_data(persia) -> None:
    ended = persia("train", "conf=criteo", "mode=sync", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    [line] = [line for line in ended.out.splitlines() if "made-up" in line]
    assert line.endswith("; for the real ones: persia recipe prepare criteo --input SOURCE --output data/criteo")


def test_missing_data_may_be_refused(persia) -> None:
    ended = persia("train", "conf=criteo", "dataset.generator=null", "--dry-run")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert "data/criteo" in ended.err


def test_the_default_run_directory_has_name_and_time(persia) -> None:
    ended = persia("train", "dataset=tiny", "name=mine", "--dry-run")
    assert re.match(r"run +mine in runs/mine-\d{8}-\d{6}\n", ended.out)


def test_dense_weights_on_servers_take_what_the_network_needs(persia) -> None:
    ended = persia("train", "dataset=tiny", "mode=async", "mode.staleness=5", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert "; async, staleness 5; " in ended.out
    assert re.search(r"^\(dense\) +1024 +float32 +adam +- +-$", ended.out, re.MULTILINE)
    assert re.search(r"^all +1\.0 GiB$", ended.out, re.MULTILINE)
