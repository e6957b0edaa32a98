"""Trackers of whole jobs: a rollback and a resume send no step twice, and Prometheus scrapes a job that runs."""

import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from persia_cli.loggers.feed import state_in
from persia_cli.loggers.logger import TENSORBOARD
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from tests.conftest import poll_for
from tests.support.jobs import train
from tests.support.launched import ENDLESS, Launched
from tests.support.logged import free_port, in_tensorboard, in_trackio
from tests.support.small import WORDS

LIMIT_S = 120.0


def test_a_job_without_loggers_starts_none(tmp_path: Path) -> None:
    run = train([*WORDS, "cluster=embedded", "train.steps=5"], tmp_path / "run").run_dir
    assert not (run / "loggers").exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_job_goes_back_and_no_step_is_sent_twice(tmp_path: Path) -> None:
    trackio = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    words = [*ENDLESS, "train.steps=2000", "loggers=[tensorboard,trackio]", "checkpoint.every_steps=100"]
    with Launched(words, tmp_path / "run", trackio) as job:

        def has_sent(step: int) -> bool:
            return all(state_in(job.run_dir, name).sent.get("train", 0) >= step for name in ("tensorboard", "trackio"))

        poll_for(lambda: has_sent(150) and (job.run_dir / "checkpoints" / "step-100").exists(), LIMIT_S, "step 150")
        os.kill(job.pids()["nn-worker-0"], signal.SIGKILL)
        poll_for(lambda: (job.run_dir / "earlier" / "start").exists(), LIMIT_S, "the rollback")
        poll_for(lambda: has_sent(500), LIMIT_S, "step 500")
        [coordinator] = [
            each for each in psutil.Process(job.process.pid).children(recursive=True) if "coordinator" in each.cmdline()
        ]
        coordinator.kill()  # The loggers send the rest and end.
        assert job.end(LIMIT_S)[0] == 0, job.output[-2000:]
        assert [event for event in read_journal(job.run_dir / EVENTS) if event["event"] == "warning"] == []
    lines = read_journal(job.run_dir / METRICS)
    expected = [line["step"] for line in lines if line["split"] == "train"]
    assert expected[-1] == 2000
    assert [step for step, _ in in_tensorboard(job.run_dir / TENSORBOARD)["train/loss"]] == expected
    [points] = in_trackio(tmp_path / "trackio", "synthetic").values()
    assert [step for step, _ in points["train/loss"]] == expected


@contextmanager
def prometheus(folder: Path, target: int, port: int) -> Iterator[None]:
    """Run a Prometheus that scrapes a port each second."""
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "persia", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/prometheus"]
    with (folder / "prometheus.log").open("wb") as output:
        listen = f"--web.listen-address=127.0.0.1:{port}"
        server = subprocess.Popen([*command, listen], stdout=output, stderr=output)
    try:
        yield
    finally:
        server.kill()
        server.wait()


def scraped(port: int, query: str) -> list[Any]:
    """Return what Prometheus answers to a query."""
    try:
        words = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}", timeout=5) as answer:
            return list(json.load(answer)["data"]["result"])
    except OSError:
        return []


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_scrapes_a_job(tmp_path: Path) -> None:
    page, port = free_port(), free_port()
    words = [*ENDLESS, f"metrics_port={page}", "eval.every_steps=100"]
    with prometheus(tmp_path, page, port), Launched(words, tmp_path / "run") as job:
        poll_for(lambda: scraped(port, 'persia_auc{split="eval"}'), LIMIT_S, "an evaluation in Prometheus")
        [found] = scraped(port, 'persia_step{split="train"} > 0')
        steps = [line["step"] for line in read_journal(job.run_dir / METRICS) if line["split"] == "train"]
        assert int(found["value"][1]) in steps
        assert scraped(port, "persia_run")[0]["metric"]["run"] == "run"
        listeners = [each.laddr.ip for each in psutil.net_connections() if each.laddr and each.laddr.port == page]
        assert set(listeners) == {"127.0.0.1"}
        job.process.send_signal(signal.SIGTERM)
        job.end(LIMIT_S)
        poll_for(lambda: scraped(port, "up == 0"), LIMIT_S, "the end of the page")
