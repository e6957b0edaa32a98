"""A job compiles the kernels it calls and no others, before it begins, and says so only if there are any."""

import json
import os
import subprocess
import sys
from contextlib import closing

import pytest

from persia_cli.engines.kernels import Compiling, job_kernels, job_needs
from persia_cli.kernels.toolchain.needs import SAVING
from persia_cli.observe.journal import EVENTS, read_journal
from tests.support.jobs import plan

PROGRAM = """
import json, sys
from pathlib import Path
from persia_cli.kernels.toolchain.compile import KERNELS
from persia_cli.engines.kernels import job_kernels, job_needs
from tests.support.jobs import launch, plan

job = plan(sys.argv[2:], Path(sys.argv[1]))
foreseen = job_kernels(job_needs(job))
result = launch(job)
ready = [kernel.name for kernel in KERNELS if kernel._ready]
print(json.dumps({"foreseen": foreseen, "called": ready, "events": [e["event"] for e in result.events]}))
"""
SMALL = ("cluster=embedded", "dataset.generator.train_rows=640", "dataset.generator.eval_rows=64")
OF_LISTS = {"hashing.rebase_offsets"}
"""Kernels that only lists of ids need."""


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [
        (*SMALL, "optimizer.embedding.kind=rowwise_adagrad"),
        pytest.param(
            (
                *SMALL,
                "optimizer.embedding.kind=adam",
                "embedding.tables.feature_0.optimizer={kind: sgd, lr: 0.1}",
                "mode=sync",
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_job_calls_the_kernels_that_were_foreseen(tmp_path, words):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), "conf=synthetic", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    called, foreseen = set(said["called"]), set(said["foreseen"])
    assert called <= foreseen | OF_LISTS
    # Some of those that save are needed only where training goes on meanwhile.
    assert foreseen - set(job_kernels([SAVING])) <= called


def test_compilations_are_counted_and_an_unwritable_cache_is_reported(tmp_path, monkeypatch):
    job = plan(["conf=synthetic"], tmp_path)
    names = job_kernels(job_needs(job))
    kept = set(names[:1])
    monkeypatch.setattr("persia_cli.engines.kernels.is_ready", lambda need: False)
    monkeypatch.setattr("persia_cli.engines.kernels.is_cached", lambda name: name in kept)
    monkeypatch.setattr("persia_cli.engines.kernels.can_cache", lambda: False)
    with closing(Compiling(job)) as kernels:
        kernels.check()
        kept.update(names[1:3])
        kernels.check()
    begun, warning, *done = read_journal(tmp_path / EVENTS)
    total = len(names) - 1
    assert (begun["event"], begun["done"], begun["total"]) == ("compiling", 0, total)
    assert "NUMBA_CACHE_DIR" in warning["text"]
    assert [(line["done"], line["total"], line["kernel"]) for line in done] == [
        (1, total, names[1]), (2, total, names[2])
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.processes
def test_processes_of_a_first_job_compile_each_kernel_once(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    words = [*SMALL[1:], "cluster.embedding_servers=2", f"--run-dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "persia_cli", "train", "conf=synthetic", *words]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    events = read_journal(tmp_path / "run" / EVENTS)
    compiled = [event["kernel"] for event in events if event.get("kernel")]
    assert sorted(compiled) == sorted(job_kernels(job_needs(plan(["conf=synthetic", *words[:-1]], tmp_path / "other"))))
    assert [event["done"] for event in events if event["event"] == "compiling"] == list(range(len(compiled) + 1))
