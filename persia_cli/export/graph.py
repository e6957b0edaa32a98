"""The dense network as an ONNX file, by torch.export."""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from persia_cli.errors import UserError, one_line
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape
from persia_cli.serving.predictor import LOGITS
from persia_cli.serving.row_reader import Inputs, pooled_name, sequence_names
from persia_cli.training.inputs import GroupShape

EXAMPLES = 3
"""Number of samples of the batch that traces the network; exported networks take any number."""
OPERATION = re.compile(r"\b(?:aten|prims|torchvision|quantized)[.:]+[a-z_0-9]+(?:\.\w+)?")


class TensorsToLogits(nn.Module):
    """A network whose input is plain tensors: dense features, vectors of each group, vectors and masks of sequences."""

    def __init__(self, network: nn.Module, names: list[list[str]], sequences: list[str]) -> None:
        super().__init__()
        self.network, self.names, self.sequences = network, names, sequences

    def forward(
        self, dense: torch.Tensor, pooled: list[torch.Tensor], values: list[torch.Tensor], masks: list[torch.Tensor]
    ) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        padded = dict(zip(self.sequences, zip(values, masks, strict=True), strict=True))
        logits: torch.Tensor = self.network(ModelBatch(dense, pooled, self.names, padded))
        return logits


class Example(NamedTuple):
    """A network of plain tensors with a batch for it."""

    module: TensorsToLogits
    arguments: tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]
    shapes: tuple[Any, ...]
    """The dimension of each tensor that may have any size: that of samples."""
    inputs: list[str]
    """Name of each tensor."""


def example_of(network: nn.Module, shape: InputShape, groups: tuple[GroupShape, ...]) -> Example:
    """Return a network in evaluation mode with a batch for tracing."""
    names = [[feature.name for feature in group.features if feature.pooling != "none"] for group in groups]
    numbers = [number for number, feature in enumerate(shape.features) if feature.pooling == "none"]
    pooled = [
        torch.zeros(EXAMPLES, len(own), group.dim) for own, group in zip(names, groups, strict=True)
    ]  # fmt: skip
    sequences = [shape.features[number] for number in numbers]
    values = [torch.zeros(EXAMPLES, each.max_length or 0, each.dim) for each in sequences]
    masks = [torch.ones(EXAMPLES, each.max_length or 0, dtype=torch.bool) for each in sequences]
    dense = torch.zeros(EXAMPLES, shape.dense)
    module = TensorsToLogits(network, names, [each.name for each in sequences]).eval()
    inputs = ["dense", *(pooled_name(number) for number in range(len(groups)))]
    inputs += [sequence_names(number)[0] for number in numbers] + [sequence_names(number)[1] for number in numbers]
    samples = torch.export.Dim("samples", min=1)
    shapes = ({0: samples}, *([{0: samples} for _ in each] for each in (pooled, values, masks)))
    return Example(module, (dense, pooled, values, masks), shapes, inputs)


def write_network(
    network: nn.Module,
    shape: InputShape,
    groups: tuple[GroupShape, ...],
    path: Path,
    what: str,
    keeps_weights: bool = False,
) -> None:
    """Write a network in evaluation mode as an ONNX file.

    With `keeps_weights`, its initialisers are all weights, under their names, so that others can replace them;
    otherwise some are folded into others, which onnxruntime does too when it loads the file.

    Raises UserError that names `what` and the operation, for a network that cannot be traced or written as ONNX.
    """
    _require_onnx()
    example = example_of(network, shape, groups)
    with following(what):
        torch.onnx.export(
            example.module,
            example.arguments,
            path,
            dynamo=True,
            input_names=example.inputs,
            output_names=[LOGITS],
            dynamic_shapes=example.shapes,
            external_data=False,
            verbose=False,
            optimize=not keeps_weights,
        )


def weights_by_name(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters and buffers of a network by all their names, also those that are not saved with it."""
    return {
        **dict(network.named_parameters(remove_duplicate=False)),
        **dict(network.named_buffers(remove_duplicate=False)),
    }


class WeightlessNetwork:
    """A network as an ONNX file that `write_network` has written with `keeps_weights`; other weights take its place."""

    def __init__(self, path: Path) -> None:
        """Read the file."""
        import onnx

        self._model = onnx.load(path)

    def has_all_weights(self, network: nn.Module) -> bool:
        """Return True if all floating-point weights of a network are in the file, so that others can replace them."""
        named, there = weights_by_name(network), {each.name for each in self._model.graph.initializer}
        replaceable = {id(weight) for name, weight in named.items() if f"network.{name}" in there}
        return all(id(weight) in replaceable for weight in named.values() if weight.is_floating_point())

    def write(self, network: nn.Module, path: Path) -> None:
        """Write the file with the weights of a network."""
        from onnx import numpy_helper

        weights = {f"network.{name}": each for name, each in weights_by_name(network).items()}
        for each in self._model.graph.initializer:
            if each.name in weights:
                values = np.ascontiguousarray(weights[each.name].detach().numpy())
                each.CopyFrom(numpy_helper.from_array(values, each.name))
        path.write_bytes(self._model.SerializeToString())


def inputs_of(shape: InputShape, batch: ModelBatch) -> Inputs:
    """Return the inputs of the file for a batch."""
    inputs = {"dense": batch.dense.numpy()}
    inputs |= {pooled_name(number): rows.detach().numpy() for number, rows in enumerate(batch.groups)}
    for number, feature in enumerate(shape.features):
        if feature.pooling == "none":
            pair = [tensor.detach().numpy() for tensor in batch.sequences[feature.name]]
            inputs |= dict(zip(sequence_names(number), pair, strict=True))
    return inputs


@contextmanager
def following(what: str) -> Iterator[None]:
    """Raise errors of torch's exporter as a UserError that names `what`, but those of the disk as OSError."""
    with suppressed_warnings(), torch.no_grad():
        try:
            yield
        except Exception as error:  # errors of the exporter have no common base class
            for each in causes(error):
                # Python's own OSErrors, such as that a class has no source, have no number.
                if isinstance(each, OSError) and each.errno is not None:
                    raise each from None
            raise UserError(refusal(error, what)) from error


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    return chain


@contextmanager
def suppressed_warnings() -> Iterator[None]:
    """Suppress warnings of torch's exporter: they concern torch, and failures raise errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'persia-cli[export]'") from error


def refusal(error: BaseException, what: str) -> str:
    """Return a sentence that names the operation at which the export of a network failed."""
    chain = causes(error)
    for each in reversed(chain):
        found = OPERATION.search(str(each))
        if found:
            return (
                f"{what} cannot be exported, since ONNX has no operation {found.group()}; write it by other "
                "operations, or export it with --format torch"
            )
    reason = one_line(chain[-1]).split(". ")[0][:200]
    return (
        f"{what} cannot be exported: {reason}; its forward must not depend on values of tensors or on the number of "
        "samples; change it, or use --format torch"
    )
