"""The targets of a job's throughput, and the job that they hold for."""

from persia_cli.bench.traffic import CRITEO
from persia_cli.config.schema import Adagrad, Dlrm, GeneratedDataset, HybridMode, Run
from persia_cli.observe.processor import Processor

DENSE = {(1, "float32"): 0.95, (1, "bfloat16"): 0.90, (2, "float32"): 0.85, (2, "bfloat16"): 0.72}
"""Part of the dense network's own speed that a job must reach, by torch threads and precision."""
TORCH = {"float32": 1.03, "bfloat16": 1.2}
"""Speed that a job must reach as a multiple of torch in one process, by precision."""
BATCH, DIM, STALENESS, SERVERS = 4096, 16, 3, 2


def throughput_target(run: Run, baseline: str, processor: Processor) -> float | None:
    """Return the target against a baseline.

    The targets hold for DLRM on data of Criteo's shape: for any other run, and for a precision that the processor is
    slow at, return None.
    """
    dataset, optimizer = run.dataset, run.optimizer.embedding
    generator = dataset.generator if isinstance(dataset, GeneratedDataset) else dataset.stand_in
    has_target = (
        isinstance(run.model, Dlrm)
        and run.model.dim == DIM
        and generator is not None
        and generator.cardinalities == CRITEO
        and run.train.batch_size == BATCH
        and isinstance(optimizer, Adagrad)
        and run.mode == HybridMode(kind="hybrid", staleness=STALENESS)
        and run.cluster.embedding_servers == SERVERS
    )
    precision = run.train.precision
    if not has_target or processor.slow_precision(precision):
        return None
    return DENSE.get((run.train.threads, precision)) if baseline == "dense" else TORCH.get(precision)
