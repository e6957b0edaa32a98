"""`persia drill` disturbs real jobs, and what it says is so."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from persia_cli.drill.job import events_of
from persia_cli.launch.role import read_job
from persia_cli.main import main
from persia_cli.observe.journal import METRICS, read_journal
from tests.support.small import WORDS

LIMIT_S = 400.0
STEPS = 600
JOB = [*WORDS, "train.log_every_steps=5", "cluster=local", f"dataset.generator.train_rows={32 * STEPS}"]
KINDS = [
    ["kill", "data-loader"],
    ["kill", "embedding-worker"],
    ["kill", "embedding-server"],
    ["kill", "nn-worker"],
    ["kill", "coordinator"],
    ["kill", "embedding-server", "nn-worker"],
    ["kill", "launcher"],
    ["node"],
    ["stop", "embedding-server", "--for", "1"],
    ["slow", "nn-worker", "--for", "1"],
    ["cut", "embedding-worker", "embedding-server", "--for", "1"],
    ["cut", "embedding-worker", "nn-worker", "--for", "1", "cluster.transport=tcp"],
    ["fill-disk"],
    ["corrupt-frame", "embedding-server"],
    ["corrupt-frame", "coordinator", "cluster.transport=tcp"],
]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def drill(*words: str, cwd: Path, code: int = 0) -> str:
    """Run `persia drill`; return what it printed, once it has ended with this code and left no process."""
    ended = subprocess.run(
        [sys.executable, "-m", "persia_cli", "drill", *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert [each for each in psutil.process_iter(["cmdline"]) if str(cwd) in " ".join(each.info["cmdline"] or [])] == []
    return ended.stdout + ended.stderr


def result_of(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def check(result: dict[str, Any], run_dir: Path) -> None:
    """What a drill says must be what the run's own record says, wherever that has it too."""
    assert result["problems"] == []
    assert result["recovered"]
    assert (result["updates_applied_twice"], result["updates_lost"]) == (0, 0)
    servers = {replica for event in events_of(run_dir) if event["event"] == "ready" for replica in names(event)}
    assert result["updates_applied"] == len(servers) * (STEPS - read_job(run_dir / "job.json").first_step)
    assert result["auc"]["label"] == read_journal(run_dir / METRICS)[-1]["auc"]


def names(event: dict[str, Any]) -> list[str]:
    return [each["name"] for each in event["replicas"] if each["name"].startswith("embedding-server")]


@pytest.mark.slow
def test_a_loader_is_killed_and_the_table_says_what_it_cost(tmp_path):
    said = drill("kill", "data-loader", "--at-step", "50", "--no-compare", "--folder", "out", "--json", "out.json",
                 *JOB, cwd=tmp_path)  # fmt: skip
    result = result_of(tmp_path / "out.json")
    check(result, tmp_path / "out" / "drilled")
    [strike] = result["drills"]
    [died, recovered] = [e for e in events_of(tmp_path / "out" / "drilled") if e["event"] in ("died", "recovered")]
    assert died["replica"] == "data-loader-0"
    assert strike["step"] >= 50
    assert strike["noticed_s"] == pytest.approx(died["time"] - strike["at"], abs=0.01)
    assert strike["recovered_s"] == pytest.approx(recovered["time"] - strike["at"], abs=0.01)
    assert strike["repeated"] == recovered["repeated"]
    assert "next      persia report " in said
    assert said.startswith(f'drill="kill data-loader-0" step={strike["step"]} noticed=')
    assert " applied_twice=0 updates_lost=0 " in said


@pytest.mark.slow
@pytest.mark.parametrize("words", KINDS, ids=" ".join)
def test_after_every_drill_a_sync_run_has_the_model_of_an_undisturbed_one(tmp_path, words):
    drill(*words, "--at-step", "200", "--folder", "out", "--json", "out.json", *JOB, cwd=tmp_path)
    result = result_of(tmp_path / "out.json")
    check(result, tmp_path / "out" / "drilled")
    assert result["same_model"] is True
    assert result["auc_difference"] == 0.0
    assert result["auc"] == result["auc_undisturbed"]
    [strike] = result["drills"]
    assert strike["recovered_s"] > 0
    assert strike["standstill_s"] > 0


@pytest.mark.slow
def test_a_job_that_does_not_recover_is_named_and_nothing_is_left(tmp_path):
    words = ["kill", "embedding-server", "--at-step", "50", "--folder", "out", "--json", "out.json", *JOB]
    said = drill(*words, "recovery.max_restarts=0", cwd=tmp_path, code=1)
    result = result_of(tmp_path / "out.json")
    assert result["recovered"] is False
    assert "embedding-server-0 was killed by SIGKILL" in result["problems"][0]
    assert "failed    kill embedding-server-0: embedding-server-0 was killed by SIGKILL" in said
    assert not (tmp_path / "out" / "undisturbed").exists()


def test_a_job_that_ends_before_it_begins_says_why(tmp_path):
    (tmp_path / "file").touch()
    words = ["kill", "nn-worker", "--folder", "out", *JOB, f"checkpoint.path={tmp_path}/file/models"]
    said = drill(*words, "--no-compare", cwd=tmp_path, code=2)
    assert f"error: checkpoint.path={tmp_path}/file/models cannot be used: cannot write" in said
    assert said.endswith("Not a directory; choose another place (before it could be disturbed)\n")


@pytest.mark.slow
def test_random_drills_of_a_hybrid_job_lose_nothing(tmp_path):
    words = ["mode=hybrid", "mode.staleness=4", "cluster.embedding_servers=2"]
    drill("--random", "4", "--seed", "3", "--folder", "out", "--json", "out.json", *JOB, *words, cwd=tmp_path)
    result = result_of(tmp_path / "out.json")
    check(result, tmp_path / "out" / "drilled")
    assert len(result["drills"]) == 4


@pytest.mark.slow
def test_a_job_that_runs_already_goes_on_after_its_drills(tmp_path):
    run_dir = tmp_path / "run"
    words = [word for word in JOB if "train_rows" not in word]
    command = [sys.executable, "-m", "persia_cli", "train", *words, "dataset.generator.train_rows=1_000_000_000"]
    command += ["checkpoint.every_steps=200", "checkpoint.keep=2", "--run-dir", str(run_dir)]
    with (tmp_path / "train.out").open("wb") as output:
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + LIMIT_S
        while len(read_journal(run_dir / METRICS)) < 50:
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for kind in ["kill", "embedding-worker"], ["stop", "data-loader", "--for", "1"], ["kill", "nn-worker"]:
            ended = subprocess.run(
                [sys.executable, "-m", "persia_cli", "drill", *kind, "--run", str(run_dir), "--json", "out.json"],
                cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S,
            )  # fmt: skip
            assert ended.returncode == 0, ended.stderr
            result = result_of(tmp_path / "out.json")
            assert result["recovered"]
            assert result["updates_applied"] is None, "servers give their counts at the end"
            assert job.poll() is None
    finally:
        job.kill()
        job.wait()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kill", "nn-worker-3"], "error: there is no nn-worker-3 in this job to kill; it has coordinator-0,"),
        (["burn"], "error: there is no drill burn; there are kill, stop,"),
        (["kill", "nn-worker", "--at-step", "600"], "error: --at-step=600: the training has the steps 0 to 599 only"),
        (["kill", "nn-worker", "--run", "nowhere"], "error: nowhere is not a run directory: it has no config.yaml"),
        (
            ["stop", "nn-worker", "--for", "40"],
            "error: --for=40: after 30 s of silence a job ends; give less, or raise",
        ),
        (["kill", "nn-worker", "cluster=embedded"], "error: cluster=embedded is one process, of which nothing can be"),
        (
            ["kill", "nn-worker", "--json", "no/out.json"],
            "error: --json=no/out.json: this is not a file in a folder that",
        ),
        (["kill", "nn-worker", "--random", "3"], "error: --random chooses kinds, targets and steps itself;"),
    ],
)
def test_what_is_not_possible_ends_with_a_sentence_before_anything_starts(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    settings = [] if "--run" in words else JOB[: -1 if "cluster=embedded" in words else None]
    monkeypatch.setattr(sys, "argv", ["persia", "drill", *words[:2], *settings, *words[2:]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("error: ") == 1
    assert list(tmp_path.iterdir()) == []
