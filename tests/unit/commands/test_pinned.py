"""Processors that replicas are pinned to are shown before anything starts, and wrong ones refused."""

import os
import re
from pathlib import Path

import pytest

OWN = sorted(os.sched_getaffinity(0))


def test_a_dry_run_has_them_in_its_commands(persia) -> None:
    first, *_, last = [*OWN, OWN[-1]]
    given = f"cluster.pin={{embedding_server: ['{first},{last}', {last}], nn_worker: {first}-{first}}}"
    words = ("dataset=tiny", "cluster=local", "cluster.embedding_servers=2", given)
    ended = persia("train", *words, "--dry-run", "--verbose")
    assert (ended.code, ended.err) == (0, "")
    pinned = dict(re.findall(r"^  persia launch-role (\S+ .*--index \d) --cpus (\S+) --token", ended.out, re.MULTILINE))
    assert pinned == {
        "embedding-server --coordinator ADDRESS --index 0": f"{first},{last}",
        "embedding-server --coordinator ADDRESS --index 1": f"{last}",
        "nn-worker --coordinator ADDRESS --index 0": f"{first}-{first}",
    }


def test_a_job_that_cannot_be_pinned_does_not_start(persia) -> None:
    ended = persia("train", "dataset=tiny", "cluster=local", "cluster.pin.data_loader=9999", "--run-dir", "run")
    assert ended.code == 2
    sentence = "error: cluster.pin.data_loader=9999 for data-loader-0: this machine has no processor 9999; it has "
    assert sentence in ended.err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("9999", "error: --cpus 9999: this machine has no processor 9999; it has "),
        ("some", "error: --cpus some: some is no processor; name some, such as 0-3,8 or node:0"),
    ],
)
def test_a_role_that_cannot_be_pinned_does_not_start(persia, text: str, sentence: str) -> None:
    words = ["nn-worker", "--coordinator", "tcp://127.0.0.1:7", "--index", "0", "--token-file", "token"]
    ended = persia("launch-role", *words, "--cpus", text)
    assert ended.code == 2
    assert ended.err.startswith(sentence)
