"""The NN worker: one rank, as a training thread that follows instructions and an I/O thread that owns the sockets."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.config.schema import AsyncMode, Run, SyncMode
from persia_cli.control.splits import EVAL, SPLIT_NAMES, TRAIN
from persia_cli.errors import ConfigError, PersiaError
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.roles.link import HEARTBEAT_S, Link
from persia_cli.roles.nn_pipeline import Pipeline, ReadyBatch
from persia_cli.store.manifest import verify
from persia_cli.store.wire_rows import encode_rows
from persia_cli.train.device import choose_device
from persia_cli.train.distributed import LostRankError, World
from persia_cli.train.inputs import GroupRows, Samples
from persia_cli.train.rank import Interval, Rank
from persia_cli.train.step import TRAINING
from persia_cli.wire.loop import Loop
from persia_cli.wire.messages import BatchId

EVAL_STEPS_IN_FLIGHT = 8
SYNC_STEPS_IN_FLIGHT = 2
"""In sync mode the next look-up waits at the servers, so asking for it early costs no staleness."""

LOADED_AHEAD = 8
"""Steps that loaders may send beyond those that may be in flight."""

PORTION = 2**18
"""Samples of an evaluation, all ranks together, after which ranks report what they have of it."""

DENSE = "dense"
"""Folder of a checkpoint that holds the dense weights and optimizer."""


class JobEndedError(PersiaError):
    """The job has ended while the rank was at work."""


class NNWorker:
    """One rank. `run` is the training thread; the I/O thread it starts owns loop, link and pipeline."""

    def __init__(self, loop: Loop, link: Link, bind: str, advertise: str | None = None) -> None:
        self._loop = loop
        self._link = link
        self._pipeline = Pipeline(loop, link, bind, advertise)
        self._instructions: queue.SimpleQueue[tuple[int, str, dict[str, Any]]] = queue.SimpleQueue()
        self._busy_since: float | None = None
        self._steps_scored = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Train and evaluate as instructed until the job is over."""
        run, job = self._link.join(self._pipeline.address)
        self._link.progress_age_s = self._progress_age
        self._link.figures = lambda: {"counts": {"steps_scored": self._steps_scored}}
        in_flight = {TRAIN: _train_bound(run), EVAL: EVAL_STEPS_IN_FLIGHT}
        self._pipeline.connect(run, job, in_flight, in_flight[TRAIN] + LOADED_AHEAD)
        rendezvous = Path(job.run_dir) / "rendezvous" if run.cluster.nn_workers > 1 else None
        # Longer than the coordinator waits, for that one knows which replica has fallen silent.
        timeout_s = run.cluster.silence_timeout_s + 2 * HEARTBEAT_S
        ranks = 1 if isinstance(run.mode, AsyncMode) else run.cluster.nn_workers
        device = _device(run, self._link.index)
        world = World(self._link.index, ranks, rendezvous, timeout_s, device)
        io = threading.Thread(target=self._pipeline.serve, args=(self._ended,), name=f"{self._link.name}-io")
        io.start()
        try:
            self._work(run, job, world)
        except JobEndedError:
            pass
        except LostRankError:
            # The coordinator finds out which rank it is, and stops the job with a sentence that names it.
            if not self._is_stopped_within(timeout_s):
                raise
        finally:
            self._ended.set()
            self._pipeline.wake()
            io.join()
        # After a failure the group is left only with the process: the other ranks would notice at once, and their
        # complaints reach the coordinator before this rank's own word does.
        world.close()
        self._link.farewell()

    def _is_stopped_within(self, seconds: float) -> bool:
        """Wait to be told to stop, at most so long, and say whether that came; the I/O thread keeps on beating."""
        self._busy_since = None
        deadline = time.monotonic() + seconds
        while not self._link.stop and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._link.stop

    # The I/O thread

    def _on_instruction(self, number: int, kind: str, body: dict[str, Any]) -> None:
        self._instructions.put((number, kind, body))

    def _progress_age(self) -> float:
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    # The training thread

    def _work(self, run: Run, job: Job, world: World) -> None:
        self._trace = self._link.trace
        rank = Rank(run, world, self._trace, self._pipeline.empty)
        self._servers = run.cluster.embedding_servers
        self._ranks = run.cluster.nn_workers
        self._portion = max(1, PORTION // run.train.batch_size)
        self._wires = [group.wire for group in embedding_layout(run).groups]
        self._pipeline.dense_rows = rank.dense_rows
        if job.load:
            rank.load(verify(Path(job.load), DENSE))
        self._pipeline.call(lambda: self._link.ready(self._on_instruction, rank.parameters))
        self._follow(rank)

    def _follow(self, rank: Rank) -> None:
        handlers: dict[str, Callable[[Rank, dict[str, Any]], dict[str, Any]]] = {
            "training": self._train,
            "evaluating": self._evaluate,
            "predicting": self._predict,
            "saving": self._save,
            "paused": lambda rank, body: {},
        }
        while not self._link.stop:
            self._pipeline.check()
            try:
                number, kind, body = self._instructions.get(timeout=0.05)
            except queue.Empty:
                continue
            result = handlers[kind](rank, body)
            self._pipeline.call(partial(self._link.done, number, **result))

    def _train(self, rank: Rank, body: dict[str, Any]) -> dict[str, Any]:
        interval = rank.interval()
        for ready in self._batches(TRAIN, body["first"], body["last"]):
            samples, groups = self._inputs(ready)
            done = ready.batch.step + 1
            scored = rank.train(
                ready.batch.step,
                samples,
                groups,
                send=partial(self._send, ready.batch),
            )
            # Figures are none of the training thread's business: the I/O thread has the time.
            self._pipeline.call(partial(interval.add, samples, scored, ready.staleness))
            if done % rank.log_every_steps == 0 or done == body["last"]:
                self._report(TRAIN, done, interval)
                interval = rank.interval()
        return {}

    def _send(self, batch: BatchId, gradients: list[NDArray[np.float32]]) -> None:
        with self._trace.span(TRAINING, "encode gradients", batch):
            encoded = [encode_rows(*each, self._pipeline.empty) for each in zip(gradients, self._wires, strict=True)]
        self._pipeline.push(batch, encoded)
        if self._ranks > 1:
            # From now on this rank waits for the others: should one be stuck, it is not this one.
            self._busy_since = None

    def _evaluate(self, rank: Rank, body: dict[str, Any]) -> dict[str, Any]:
        self._refresh(rank, EVAL, body["first"])
        interval = rank.interval()
        for ready in self._batches(EVAL, body["first"], body["last"]):
            samples, groups = self._inputs(ready)
            scored = rank.evaluate(ready.batch.step, samples, groups)
            self._pipeline.call(partial(interval.add, samples, scored))
            self._pipeline.push(ready.batch, [])
            self._steps_scored += 1
            done = ready.batch.step + 1
            if (done - body["first"]) % self._portion == 0 and done < body["last"]:
                self._report(EVAL, done, interval, more=True)
                interval = rank.interval()
        self._report(EVAL, body["last"], interval)
        return {}

    def _predict(self, rank: Rank, body: dict[str, Any]) -> dict[str, Any]:
        self._refresh(rank, EVAL, body["first"])
        for ready in self._batches(EVAL, body["first"], body["last"]):
            scored = rank.evaluate(ready.batch.step, *self._inputs(ready))
            # A batch counts as in flight until its scores are written, so that they cannot pile up on the way.
            release = partial(self._pipeline.push, ready.batch, [])
            self._pipeline.call(partial(self._link.send_scores, ready.batch, scored.logits, release))
            self._steps_scored += 1
        return {}

    def _save(self, rank: Rank, body: dict[str, Any]) -> dict[str, Any]:
        if self._link.index != 0:
            return {}
        self._refresh(rank, TRAIN, body["step"] - 1)
        return {"files": [asdict(file) for file in rank.save(Path(body["folder"]) / DENSE)]}

    def _refresh(self, rank: Rank, split: int, step: int) -> None:
        """Give the rank the dense weights that all ranks' updates came to, if embedding servers keep them."""
        if rank.dense_rows == 0:
            return
        arrays = self._pipeline.weights(split, step, lambda: self._link.stop)
        if arrays is None:
            raise JobEndedError("the job has ended")
        rank.refresh(self._groups(arrays)[0])

    def _batches(self, split: int, first: int, last: int) -> Iterator[ReadyBatch]:
        """Yield the rank's batches of the steps [first, last), then wait until all of them are applied."""
        self._pipeline.start(split, last)
        for step in range(first, last):
            with self._trace.span(TRAINING, "wait for batch", BatchId(0, split, step, self._link.index)):
                batch = self._pipeline.take(lambda: self._link.stop)
            if batch is None:
                raise JobEndedError("the job has ended")
            self._busy_since = time.monotonic()
            yield batch
            self._busy_since = None
        self._pipeline.wait_drained(split, lambda: self._link.stop)
        if self._link.stop:
            raise JobEndedError("the job has ended")

    def _inputs(self, ready: ReadyBatch) -> tuple[Samples, list[GroupRows]]:
        """Give the arrays of a batch their names."""
        dense, labels, weights, groups = ready.samples
        weighted, grouped = (array if array.size else None for array in (weights, groups))
        samples = Samples(dense, labels, weighted, ready.weight_total, grouped)
        return samples, self._groups(ready.arrays)

    def _groups(self, arrays: list[NDArray[Any]]) -> list[GroupRows]:
        """Give arrays their names: per group the inverse, the offsets, one block of rows per server."""
        groups = []
        per_group = 2 + self._servers
        for start in range(0, len(arrays), per_group):
            inverse, offsets, *rows = arrays[start : start + per_group]
            groups.append(GroupRows(rows, inverse, offsets if offsets.size else None))
        return groups

    def _report(self, split: int, last: int, interval: Interval, more: bool = False) -> None:
        def report() -> None:
            body, arrays = interval.encode()
            self._link.report(body | {"split": SPLIT_NAMES[split], "last": last, "more": more}, arrays)

        self._pipeline.call(report)


def _device(run: Run, rank: int) -> torch.device:
    """Return where the rank's network is; weights that live on servers are read and written in the host's memory."""
    if not isinstance(run.mode, AsyncMode):
        return choose_device(run.train.device, rank)
    if run.train.device not in ("auto", "cpu"):
        raise ConfigError(f"train.device={run.train.device}: with mode.kind=async dense weights are on the cpu alone")
    return choose_device("cpu", rank)


def _train_bound(run: Run) -> int:
    return SYNC_STEPS_IN_FLIGHT if isinstance(run.mode, SyncMode) else run.mode.staleness
