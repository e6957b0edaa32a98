"""The export of a model to plain torch: code and weights of its network, and a Parquet file of each table."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

from persia_cli.checkpoint.content import SortedRows
from persia_cli.export.graph import example_of, following
from persia_cli.export.output import Output
from persia_cli.export.rows import OnWork, require_rows
from persia_cli.export.saved_network import SavedNetwork
from persia_cli.observe.saved_run import SavedModel
from persia_cli.plan.columns import label_names, sparse_features
from persia_cli.store.checkpoints.manifest import read_manifest
from persia_cli.store.layout import GroupSpec

ROWS_PER_GROUP = 2**16
"""Rows of a row group of a table's file."""
SCRIPT = Path(__file__).with_name("plain_script.txt")
HEAD = '''"""The network of a model, written by `persia export --format torch`; it needs torch and safetensors alone."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import device, inf, nan  # noqa: F401

TENSORS = {tensors}
"""Names of the weights, and whether each can be trained."""


class Network(torch.nn.Module):
    """The network: called with the tensors {inputs}, it returns logits [n, labels]."""

    def __init__(self) -> None:
        super().__init__()
        found = load_file(Path(__file__).with_name("network.safetensors"))
        for number, (name, trains) in enumerate(TENSORS):
            if trains:
                self.register_parameter(f"t{{number}}", torch.nn.Parameter(found[name]))
            else:
                self.register_buffer(f"t{{number}}", found[name])

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.graph(*(getattr(self, f"t{{number}}") for number in range(len(TENSORS))), *inputs)[0]

'''


def write_plain(model: SavedModel, output: Output, network: SavedNetwork, on_work: OnWork) -> int:
    """Write a model for plain torch to an `Output`; returns the number of rows.

    Raises UserError for a network that cannot be traced, CheckpointError, DiskError.
    """
    manifest = read_manifest(model.checkpoint)
    total, done = manifest.row_count(with_dense=False), 0
    with output.replaced() as part:
        require_rows(model.checkpoint, on_work)
        inputs = write_network(part, network, f"model.kind={model.run.model.kind}")
        (part / "tables").mkdir()
        for group in network.layout.feature_groups:
            with _tables(part, group) as writers:
                for block in SortedRows(model.checkpoint, manifest, group.number):
                    for number, name in enumerate(block.names):
                        own = block.tables == number
                        if own.any():
                            writers[name].add(block.ids[own], block.vectors["embedding"][own])
                    done += block.keys.size
                    on_work("rows", done, total)
        (part / "model.json").write_text(json.dumps(_described(model, network, inputs), indent=2) + "\n")
        (part / "predict.py").write_text(SCRIPT.read_text())
    return total


def table_file(number: int) -> str:
    """Return the path of the file of a table number."""
    return f"tables/{number}.parquet"


def write_network(folder: Path, network: SavedNetwork, what: str) -> list[str]:
    """Write the network's code and weights; returns the names of its inputs."""
    example = example_of(network.network, network.shape, network.groups)
    with following(what):
        program = torch.export.export(example.module, example.arguments, dynamic_shapes=example.shapes)
        program = program.run_decompositions({})
    weights: dict[str, torch.Tensor] = {}
    names: list[tuple[str, bool]] = []
    for spec in program.graph_signature.input_specs:
        if spec.target is None:
            continue
        found = program.state_dict.get(spec.target)
        tensor = program.constants[spec.target] if found is None else found
        names.append((spec.target, isinstance(tensor, torch.nn.Parameter)))
        weights[spec.target] = tensor.detach().clone().contiguous()
    code = program.graph_module.code.strip().replace("def forward(", "def graph(", 1)
    body = "\n".join(f"    {line}" if line else "" for line in code.splitlines())
    listed = json.dumps(names).replace("true", "True").replace("false", "False")
    text = HEAD.format(tensors=listed, inputs=", ".join(example.inputs)) + body + "\n"
    (folder / "network.py").write_text(text)
    # Not save_file: it raises no OSError on a full disk, and only its user could read the file.
    (folder / "network.safetensors").write_bytes(save(weights))
    return example.inputs


class _TableWriter:
    """A writer that collects the rows of a table, and writes them as row groups of one file."""

    def __init__(self, writer: Any) -> None:
        self._writer, self._waiting, self._rows = writer, list[Any](), 0

    def add(self, ids: Any, vectors: Any) -> None:
        """Add ids uint64 [n] with vectors float32 [n, dim]."""
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        columns = [pa.array(ids), pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])]
        self._waiting.append(pa.record_batch(columns, names=["id", "vector"]))
        self._rows += len(ids)
        if self._rows >= ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._rows = [], 0


@contextmanager
def _tables(folder: Path, group: GroupSpec) -> Iterator[dict[str, _TableWriter]]:
    """Yield a writer for each table of a group."""
    schema = pa.schema([("id", pa.uint64()), ("vector", pa.list_(pa.float32(), group.dim))])
    with ExitStack() as stack:
        writers = {}
        for table in group.tables:
            path = folder / table_file(table.number)
            writers[table.name] = _TableWriter(stack.enter_context(pq.ParquetWriter(path, schema, compression="zstd")))
        yield writers
        for writer in writers.values():
            writer.flush()


def _described(model: SavedModel, network: SavedNetwork, inputs: list[str]) -> dict[str, Any]:
    """Return the description for the script: the order of inputs, and the pooling of rows."""
    tables = {table.number: table for table in network.layout.tables()}
    columns = [feature.column_name for feature in sparse_features(model.run)]
    return {
        "labels": list(label_names(model.run)),
        "inputs": inputs,
        "dense": network.shape.dense,
        "features": [
            {
                "name": each.name,
                "column": column,
                "group": each.group,
                "dim": network.layout.groups[each.group].dim,
                "pooling": each.pooling,
                "max_length": each.max_length,
                "table": table_file(each.table),
                "rounds": tables[each.table].rounds,
                "size": tables[each.table].size,
            }
            for each, column in zip(network.layout.features, columns, strict=True)
        ],
    }
