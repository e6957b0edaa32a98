"""Roles that are killed, and networks that fail, while a checkpoint is put into an object store: the one before stays.

Nothing is renamed there, what is left of uploads is swept, and the run ends as one that nothing disturbed.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persia_cli.drill.job import replicas_of
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.storage.places import Place, place_of
from persia_cli.store.checkpoints.chain import read_chain
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from tests.conftest import poll_for
from tests.support.launched import Launched
from tests.support.proxy import Proxy
from tests.support.s3 import object_store
from tests.support.small import WORDS
from tests.system.test_deltas import rows_of
from tests.system.test_killed_saves import losses, newest_step, read_started
from tests.system.test_remote_checkpoints import assert_whole, port_of
from tests.system.test_resume import persia

WHO = ["embedding-server-0", "embedding-server-1", "nn-worker-0", "coordinator-0", "launcher", "cut", "down"]
"""The killed process, or the failure of the network: all connections break, or none can be made for a while."""
JOB = [
    *WORDS,
    "dataset.generator.train_rows=1_000_000_000",
    "dataset.generator.eval_rows=32",
    "train.log_every_steps=5",
]
CLUSTER = [
    "cluster=local",
    "cluster.embedding_servers=2",
    "recovery.max_restarts=100",
    "recovery.window_s=0.5",
    "checkpoint.every_steps=20",
    "checkpoint.keep=4",
    "resume=auto",
]
PIECE_S, UPLOAD_S = 0.01, 0.8
"""By how long the network delays each piece of data, and how long an upload takes then, or a little longer."""
DOWN_S = 1.0
"""Seconds for which no connection can be made."""
LIMIT_S = 120.0
MOMENTS = 50

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Nothing is looked for but processes: pyarrow keeps connections to a store until the process ends."""
    return


class Uploads:
    """A run that saves into a store behind a slow network, through any number of starts."""

    def __init__(self, network: Proxy, uri: str, checkpoints: Place, folder: Path, full_every: int) -> None:
        self._network, self.checkpoints, self.run_dir = network, checkpoints, folder / "run"
        self._words = [*JOB, *CLUSTER, f"checkpoint.path={uri}", f"checkpoint.full_every={full_every}"]
        self.job = Launched(self._words, self.run_dir)
        self.reached = 0
        """Step of the newest checkpoint that was read whole."""
        self.within: Counter[str] = Counter()
        """Number of failures of each cause while a checkpoint was written."""

    def disturb(self, who: str, after_s: float) -> None:
        """Have something fail some time after the next save has begun, and wait until all is well."""
        recovered = len(self._told("recovered"))
        self._wait_for("saving", len(self._told("saving")) + 1)
        time.sleep(after_s)
        if who in ("cut", "down"):
            self._disturb_network(who)
        else:
            self._kill(who)
        self.within[who] += self._told("saving", "saved", "save_failed")[-1] == "saving"
        newest = newest_step(self.checkpoints)
        assert newest >= self.reached
        self.reached = newest
        if who == "launcher":
            self._start_again()
        elif who not in ("cut", "down"):
            self._wait_for("recovered", recovered + 1)

    def end(self) -> int:
        """Kill the job a last time, and let another end well a few steps later; return the last step."""
        self._kill("launcher")
        last = newest_step(self.checkpoints) + 5
        self._start_again(f"train.steps={last}")
        code, _ = self.job.end(LIMIT_S)
        assert code == 0, self.job.output[-3000:]
        return last

    def close(self) -> None:
        self.job.__exit__(None, None, None)

    def _start_again(self, *words: str) -> None:
        self.close()
        before = self._begun()
        self.job = Launched([*self._words, *words], self.run_dir)
        self._poll(lambda: self._begun() not in (None, before), "another start")

    def _told(self, *kinds: str) -> list[str]:
        """Phases and kinds of events, as they came, but for others than these."""
        events = read_journal(self.run_dir / EVENTS) if (self.run_dir / EVENTS).exists() else []
        told = [event["phase"] if event["event"] == "phase" else event["event"] for event in events]
        return [each for each in told if each in kinds]

    def _begun(self) -> float | None:
        return read_started(self.run_dir)

    def _wait_for(self, kind: str, number: int) -> None:
        self._poll(lambda: len(self._told(kind)) >= number, kind)

    def _poll(self, condition: Callable[[], bool], what: str) -> None:
        poll_for(lambda: condition() or self.job.process.poll() is not None, LIMIT_S, what)
        assert condition(), self.job.output[-3000:]

    def _kill(self, who: str) -> None:
        own = {"launcher": self.job.process.pid}
        own |= {name: replica.pid for name, replica in replicas_of(self.job.process.pid).items()}
        os.kill(own[who], signal.SIGKILL)

    def _disturb_network(self, who: str) -> None:
        if who == "cut":
            self._network.cut()
        else:
            self._network.go_down()
            time.sleep(DOWN_S)
            self._network.come_up()


@pytest.mark.parametrize("full_every", [1, 4])
def test_failures_during_an_upload_leave_the_previous_checkpoint(tmp_path: Path, full_every: int) -> None:
    """Each time every byte of the newest checkpoint is read; losses and rows are those of an undisturbed run."""
    draw = random.Random(f"uploads {full_every}")
    recording = tmp_path / "requests"
    with object_store(recording) as store, Proxy(f"tcp://127.0.0.1:{store.port}") as network:
        network.delay(PIECE_S)
        checkpoints = place_of(store.uri("uploads"))
        uploads = Uploads(network, store.uri("uploads", port_of(network)), checkpoints, tmp_path, full_every)
        try:
            while uploads.within.total() < MOMENTS:
                uploads.disturb(draw.choice(WHO), draw.random() * UPLOAD_S)
            last = uploads.end()
        finally:
            uploads.close()
        print(uploads.within, f"and {last} steps", flush=True)
        assert uploads.reached
        assert newest_step(checkpoints) == last
        # Leftovers are swept: one attempt is in each folder, and no file of another.
        assert_whole(checkpoints)
        straight = tmp_path / "straight"
        ended = persia("train", *JOB, "cluster=embedded", f"train.steps={last}", "--run-dir", straight)
        assert ended.exit_code == 0, (ended.output, ended.exception)
        assert losses(uploads.run_dir) == losses(straight)
        theirs = read_chain(checkpoint_folder(straight / CHECKPOINTS, last))
        assert rows_of(read_chain(checkpoint_folder(checkpoints, last))) == rows_of(theirs)
    asked = recording.read_text().lower()  # not line by line: requests that come at once may be mixed up
    assert '"method": "put"' in asked
    assert "x-amz-copy-source" not in asked, "a store renames by copying"
