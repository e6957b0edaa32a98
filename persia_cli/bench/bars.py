"""What a job's throughput is held to, and for which job that holds."""

from persia_cli.bench.traffic import CRITEO
from persia_cli.config.schema import Adagrad, Dlrm, GeneratedDataset, HybridMode, Run

DENSE = {(1, "float32"): 0.95, (1, "bfloat16"): 0.90, (2, "float32"): 0.85, (2, "bfloat16"): 0.72}
"""Share of the dense network's own speed, by torch threads and precision."""
TORCH = {"float32": 1.03, "bfloat16": 1.2}
"""Times the speed of torch in one process, by precision."""
BATCH, DIM, STALENESS, SERVERS = 4096, 16, 3, 2


def throughput_bar(run: Run, rival: str) -> float | None:
    """Return the bar against a rival, None for a run that is not the one it is set for: DLRM on Criteo's shape."""
    dataset, optimizer = run.dataset, run.optimizer.embedding
    generator = dataset.generator if isinstance(dataset, GeneratedDataset) else dataset.stand_in
    is_target = (
        isinstance(run.model, Dlrm)
        and run.model.dim == DIM
        and generator is not None
        and generator.cardinalities == CRITEO
        and run.train.batch_size == BATCH
        and isinstance(optimizer, Adagrad)
        and run.mode == HybridMode(kind="hybrid", staleness=STALENESS)
        and run.cluster.embedding_servers == SERVERS
    )
    if not is_target:
        return None
    return DENSE.get((run.train.threads, run.train.precision)) if rival == "dense" else TORCH.get(run.train.precision)
