"""`persia drill` disturbs real jobs, and its reports are true."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from persia_cli.drill.job import events_of
from persia_cli.engines.role import read_job
from persia_cli.main import main
from persia_cli.observe.journal import METRICS, read_journal
from tests.support.small import WORDS

LIMIT_S = 400.0
STEPS = 600
JOB = [*WORDS, "train.log_every_steps=5", "cluster=local", f"dataset.generator.train_rows={32 * STEPS}"]
TARGETS = [["data-loader"], ["embedding-server", "nn-worker"], ["coordinator"], ["driver"]]

pytestmark = pytest.mark.timeout(600)


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
    """Check that a drill reports the same as the run's own record, wherever that has it too."""
    assert result["problems"] == []
    assert result["recovered"]
    assert (result["updates_applied_twice"], result["updates_lost"]) == (0, 0)
    servers = {replica for event in events_of(run_dir) if event["event"] == "ready" for replica in names(event)}
    assert result["updates_applied"] == len(servers) * (STEPS - read_job(run_dir / "job.json").first_step)
    assert result["auc"]["label"] == read_journal(run_dir / METRICS)[-1]["auc"]


def names(event: dict[str, Any]) -> list[str]:
    return [each["name"] for each in event["replicas"] if each["name"].startswith("embedding-server")]


@pytest.mark.slow
def test_a_loader_is_killed_and_the_results_are_those_of_the_record(tmp_path):
    printed = drill("kill", "data-loader", "--at-step", "50", "--no-compare", "--folder", "out", "--json", "out.json",
                    *JOB, cwd=tmp_path)  # fmt: skip
    result = result_of(tmp_path / "out.json")
    check(result, tmp_path / "out" / "drilled")
    [died, recovered] = [e for e in events_of(tmp_path / "out" / "drilled") if e["event"] in ("died", "recovered")]
    assert died["replica"] == "data-loader-0"
    assert result["step"] >= 50
    assert result["noticed_s"] == pytest.approx(died["time"] - result["at"], abs=0.01)
    assert result["recovered_s"] == pytest.approx(recovered["time"] - result["at"], abs=0.01)
    assert result["repeated"] == recovered["repeated"]
    assert "next      persia report " in printed
    assert printed.startswith(f"targets=data-loader-0 mode=sync step={result['step']} noticed=")
    assert " updates_applied_twice=0 updates_lost=0 " in printed


@pytest.mark.slow
@pytest.mark.parametrize("targets", TARGETS, ids=" ".join)
def test_after_every_drill_a_sync_run_has_the_model_of_an_undisturbed_one(tmp_path, targets):
    drill("kill", *targets, "--at-step", "200", "--folder", "out", "--json", "out.json", *JOB, cwd=tmp_path)
    result = result_of(tmp_path / "out.json")
    check(result, tmp_path / "out" / "drilled")
    assert result["same_model"] is True
    assert result["auc_difference"] == 0.0
    assert result["auc"] == result["auc_undisturbed"]
    assert result["recovered_s"] > 0
    assert result["standstill_s"] > 0


def test_a_job_that_ends_before_it_begins_reports_the_cause(tmp_path):
    (tmp_path / "file").touch()
    words = ["kill", "nn-worker", "--folder", "out", *JOB, f"checkpoint.path={tmp_path}/file/models"]
    said = drill(*words, "--no-compare", cwd=tmp_path, code=2)
    assert f"error: checkpoint.path={tmp_path}/file/models cannot be used: " in said
    assert said.endswith("; choose another place (before step 300)\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kill", "nn-worker-3"], "error: there is no nn-worker-3 in this job to kill; it has coordinator-0,"),
        (["kill", "nn-worker", "cluster=embedded"], "error: persia drill needs cluster=local: "),
        (["kill", "nn-worker", "checkpoint.path=models"], "error: checkpoint.path would be the same"),
    ],
)
def test_what_is_not_possible_ends_with_a_sentence_before_anything_starts(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    settings = JOB[: -1 if "cluster=embedded" in words else None]
    monkeypatch.setattr(sys, "argv", ["persia", "drill", *words[:2], *settings, *words[2:]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("error: ") == 1
    assert list(tmp_path.iterdir()) == []
