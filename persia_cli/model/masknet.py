"""MaskNet: Wang et al., arXiv 2102.07619."""

from dataclasses import replace

import torch
from torch import nn

from persia_cli.config.schema import MaskNet
from persia_cli.model.fields import Fields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import LayerNorm, fully_connected, style_of
from persia_cli.model.shape import InputShape


class MaskBlock(nn.Module):
    """A layer whose inputs are multiplied by a mask: activation(norm(W (mask * x))), with the mask U relu(V e + c) + d.

    Here e are the concatenated embeddings (sections 3.2 and 3.3 of the paper).
    """

    def __init__(self, embeddings: int, inputs: int, width: int, reduction: float, after: list[nn.Module]) -> None:
        super().__init__()
        self.mask = fully_connected(embeddings, [max(1, int(inputs * reduction))], inputs)
        self.layer = nn.Sequential(nn.Linear(inputs, width, bias=False), *after)

    def forward(self, embeddings: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return [n, width] of [n, embeddings] and [n, inputs]."""
        masked: torch.Tensor = self.layer(self.mask(embeddings) * inputs)
        return masked


class MaskedBlocks(nn.Module):
    """Mask blocks in series or in parallel, then a perceptron (section 3.4 of the paper).

    The first blocks read the normalised embeddings; masks are computed from the unnormalised ones. Dense features have
    a vector too: a learned one times the value.
    """

    def __init__(self, shape: InputShape, settings: MaskNet) -> None:
        super().__init__()
        self.fields, style = Fields(shape, settings.dim), style_of(settings)
        count, widths = self.fields.count, settings.blocks
        width, self.serial = count * settings.dim, settings.structure == "serial"
        self.norm = LayerNorm(count, settings.dim) if settings.embedding_norm else nn.Identity()
        inputs = [width, *widths[:-1]] if self.serial else [width] * len(widths)
        self.blocks = nn.ModuleList(
            MaskBlock(width, before, after, settings.reduction, style.after(number, after))
            for number, (before, after) in enumerate(zip(inputs, widths, strict=True))
        )
        last = widths[-1] if self.serial else sum(widths)
        self.network = fully_connected(last, settings.hidden, shape.tasks, replace(style, norm="none"))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        fields = self.fields(batch)
        embeddings, hidden = fields.flatten(1), self.norm(fields).flatten(1)
        if not self.serial:
            return self.network(torch.cat([block(embeddings, hidden) for block in self.blocks], dim=1))
        for block in self.blocks:
            hidden = block(embeddings, hidden)
        return self.network(hidden)


build = MaskedBlocks
