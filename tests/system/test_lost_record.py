"""A record without a writer, or a deleted record: the run is dead at once, the job ends at once."""

import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from persia_cli.engines import embedded
from persia_cli.errors import UserError
from persia_cli.observe.overview import summarize
from tests.conftest import poll_for
from tests.support.jobs import plan
from tests.support.launched import ENDLESS, Launched, running

GONE = "was removed while the job was running; the job was stopped and its results are lost"


def remove(folder: Path) -> None:
    """Remove a folder while others may still make files in it."""

    def removed() -> bool:
        with suppress(OSError):
            shutil.rmtree(folder)
        return not folder.exists()

    poll_for(removed, 10.0, f"the removal of {folder}")


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_directory_that_is_removed_ends_the_job_with_one_sentence(tmp_path: Path) -> None:
    with Launched(ENDLESS, tmp_path / "run") as job:
        pids = job.wait_for_training()
        remove(job.run_dir)
        code, _ = job.end(within_s=30.0)
        assert code == 2, job.output
        assert job.output.splitlines()[-1] == f"error: {job.run_dir} {GONE}"
        assert "Traceback" not in job.output
        assert running(pids) == []
    assert not (tmp_path / "run").exists()


def test_so_does_one_of_an_embedded_job(tmp_path: Path) -> None:
    words = [*(word for word in ENDLESS if not word.startswith("cluster")), "cluster=embedded"]
    job = plan(words, tmp_path / "run")

    def follow() -> None:
        if (job.run_dir / "metrics.jsonl").exists():
            remove(job.run_dir)

    with pytest.raises(UserError, match=f"run {GONE}"):
        embedded.launch(job, follow)
    assert not job.run_dir.exists()


@pytest.mark.processes
def test_a_run_is_dead_as_soon_as_its_launcher_was_killed(tmp_path: Path) -> None:
    with Launched(ENDLESS, tmp_path / "run") as job:
        pids = job.wait_for_training()
        assert summarize(job.run_dir, time.time()).state == "running"
        job.process.send_signal(signal.SIGKILL)
        job.process.wait(30.0)
        poll_for(lambda: not running(pids), 30.0, "the end of its replicas")
        # A process whose first thread has ended counts as ended, while another may still be closing its files.
        poll_for(lambda: summarize(job.run_dir, time.time()).state == "dead", 5.0, "a run that is known to be dead")
