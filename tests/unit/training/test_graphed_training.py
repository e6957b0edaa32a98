"""Jobs whose NN worker trains by graphs, on a queue of the CPU: the same model and metrics, and errors that arrive."""

import logging
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from persia_cli.config.schema import DenseAdam
from persia_cli.errors import UserError
from persia_cli.observe.recordings import read_recordings
from persia_cli.observe.trace import Trace
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.distributed import World
from persia_cli.training.graphs import training as graphs
from persia_cli.training.graphs.device_queue import LANES, DeviceLanes, Moments
from persia_cli.training.graphs.step import GraphedStep
from persia_cli.training.graphs.training import FINISHING, GraphedTraining
from persia_cli.training.step import Scored
from scripts.measure.gpu.host_queue import HostQueue
from tests.support.jobs import evaluation, losses, staleness, train
from tests.support.runs import make_run
from tests.support.small import WORDS
from tests.unit.training.batches import GROUPS, dense_step, group_rows, samples

STEPS = 20
JOB = [
    *WORDS,
    f"dataset.generator.train_rows={32 * STEPS - 9}",
    "train.epochs=2",
    "eval.every_steps=8",
    "cluster=embedded",
    "optimizer.dense={kind: adam, lr: 0.01}",
]


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> list[HostQueue]:
    """The queues of trainers that begin in this test; they stand for those of a GPU."""
    made: list[HostQueue] = []

    def queue_for(run, world, objective, timed) -> HostQueue:
        made.append(HostQueue())
        return made[-1]

    monkeypatch.setattr(graphs, "queue_for", queue_for)
    return made


@pytest.mark.processes
def test_a_job_trains_as_without_graphs(tmp_path: Path, queues: list[HostQueue], monkeypatch) -> None:
    ours = train(JOB, tmp_path / "graphs")
    assert queues[0].submitted > STEPS
    monkeypatch.undo()
    plain = train(JOB, tmp_path / "plain")
    np.testing.assert_allclose(losses(ours), losses(plain), rtol=1e-4)
    assert evaluation(ours)["loss"] == pytest.approx(evaluation(plain)["loss"], rel=1e-4)
    assert [line["step"] for line in ours.metrics] == [line["step"] for line in plain.metrics]
    assert staleness(ours) == staleness(plain)


@pytest.mark.processes
def test_a_step_that_fails_on_the_other_thread_ends_the_job(tmp_path: Path, queues, monkeypatch) -> None:
    finish = GraphedStep.finish

    def fail(self, pending):
        if pending.step == 6:
            raise UserError("the loss of step 6 is not finite")
        return finish(self, pending)

    monkeypatch.setattr(GraphedStep, "finish", fail)
    with pytest.raises(UserError, match="step 6"):
        train(JOB, tmp_path)


@pytest.mark.processes
def test_a_graph_with_other_results_is_not_used(tmp_path: Path, queues, monkeypatch, caplog) -> None:
    body = GraphedStep._body

    def wrong(self, captured):
        body(self, captured)
        captured.result["logits"].mul_(1.5)

    monkeypatch.setattr(GraphedStep, "_body", wrong)
    with caplog.at_level(logging.WARNING):
        result = train(JOB, tmp_path)
    assert queues[0].submitted == 1
    assert len(losses(result)) == 2 * STEPS
    assert sum("without a CUDA graph" in record.getMessage() for record in caplog.records) == 1


class FullQueue(HostQueue):
    """A queue of a device that has no memory for another graph than the first."""

    def capture(self, body, warm_up) -> object:
        if self.captured:
            body()  # weights move until the memory is full
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().capture(body, warm_up)


@pytest.mark.parametrize("required", [False, True])
def test_a_larger_graph_that_does_not_fit_ends_graphs_and_changes_no_weight(required: bool) -> None:
    size = 16
    step = dense_step(config=DenseAdam(kind="adam", lr=0.01), by_kernels=False)
    graphs = GraphedTraining(
        step, GROUPS, FullQueue(), size=size, empty=np.empty, trace=Trace(), required=required, fail=lambda error: None
    )
    batch = samples(size, seed=0), [group_rows(shape, size, seed=0) for shape in GROUPS]
    before = graphs.before(batch[0])
    assert before is not None
    plain = step.train(0, *batch)
    step.update()
    graphs.verify_against_eager(0, *batch, before, plain)
    done: list[Scored] = []
    assert graphs.train(1, *batch, 0.01, lambda gradients: None, done.append)
    graphs.drain()
    weights = [weight.detach().clone() for weight in step.module.parameters()]
    counts = [float(state["step"]) for state in step.optimizer.state.values()]
    larger = batch[0], [group_rows(shape, size, seed=1, unique=500) for shape in GROUPS]
    with pytest.raises(torch.OutOfMemoryError) if required else nullcontext():
        assert not graphs.train(2, *larger, 0.01, lambda gradients: None, done.append)
        assert not graphs.train(3, *batch, 0.01, lambda gradients: None, done.append)
    assert all(map(torch.equal, step.module.parameters(), weights))
    assert [float(state["step"]) for state in step.optimizer.state.values()] == counts
    assert len(done) == 1
    graphs.close()


def test_a_network_of_your_own_is_reported_to_train_without_a_graph(caplog) -> None:
    world = World()
    world.device = torch.device("cuda", 0)
    run = make_run([], model={"kind": "custom", "dim": 4, "file": "net.py", "name": "Net"})
    with caplog.at_level(logging.INFO):
        assert graphs.queue_for(run, world, graphs.Objective(run.losses), timed=False) is None
    assert "of your own" in caplog.text


@pytest.mark.processes
def test_a_trace_has_the_work_of_the_device(tmp_path: Path, queues) -> None:
    first, last = 4, 9
    train([*JOB, f"train.trace_steps=[{first},{last}]"], tmp_path)
    [worker] = [trace for trace in read_recordings(tmp_path) if trace.replica == "nn-worker-0"]
    lanes = {lane: [span for span in worker.spans if span.lane == lane] for lane in (*LANES, FINISHING)}
    for lane in LANES:
        assert [span.step for span in lanes[lane]] == list(range(first, last))
        assert all(span.begin_ns <= (span.end_ns or 0) for span in lanes[lane])
    received = {span.step: span.end_ns for span in lanes[FINISHING] if span.name == "wait for the device"}
    assert all((span.end_ns or 0) <= received[span.step] for span in lanes[LANES[-1]])


def test_work_of_one_kind_does_not_overlap_in_a_trace() -> None:
    trace = Trace(0, 9)
    lanes = DeviceLanes(trace)
    # The second step arrives during the first graph, and its results wait for the first copy to the host.
    lanes.add(0, Moments(100, 200, 500, 900))
    lanes.add(1, Moments(250, 300, 700, 950))
    found = {(span.lane, span.step): (span.begin_ns, span.end_ns) for span in trace.take(9)}
    into, graph, out = LANES
    assert found == {
        (into, 0): (100, 200), (graph, 0): (200, 500), (out, 0): (500, 900),
        (into, 1): (250, 300), (graph, 1): (500, 700), (out, 1): (900, 950),
    }  # fmt: skip


def test_graphs_that_are_required_are_refused_with_the_reason() -> None:
    run = make_run([], train={"batch_size": 32, "graphs": "on"})
    with pytest.raises(UserError, match=r"train\.graphs=on.*CPU"):
        DenseTrainer(run, World())
    world = World(device=torch.device("cpu"))
    world.device = torch.device("cuda", 0)
    run = make_run([], train={"batch_size": 32, "graphs": "on", "accumulate": 2})
    with pytest.raises(UserError, match=r"train\.graphs=on"):
        graphs.queue_for(run, world, graphs.Objective(run.losses), timed=False)
