"""PLE, progressive layered extraction: Tang et al., RecSys 2020, doi 10.1145/3383313.3412236."""

import torch
from torch import nn

from persia_cli.config.schema import Ple
from persia_cli.model.fields import SideBySide
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import ParallelLinear, parallel_hidden_layers, parallel_networks, style_of
from persia_cli.model.shape import InputShape


class Extraction(nn.Module):
    """A level of experts: some of each task, some shared; a task's gate mixes its own with the shared ones.

    A further gate mixes the experts of all, for the shared experts of the next level; the last level has none. A gate
    is the softmax of a linear function of its experts' input (sections 4.1 and 4.2 of the paper).
    """

    def __init__(self, tasks: int, inputs: int, settings: Ple, last: bool) -> None:
        super().__init__()
        self.tasks, self.own, self.shared = tasks, settings.own, settings.shared
        count = tasks * self.own + self.shared
        self.experts = parallel_hidden_layers(count, inputs, settings.expert, style_of(settings))
        self.gates = ParallelLinear(tasks, inputs, self.own + self.shared, bias=False)
        self.shared_gate = None if last else nn.Linear(inputs, count, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the next level's input, of the same shape: [tasks + 1, n, width], the last block for shared experts.

        The last level returns only the blocks of tasks.
        """
        of_tasks, of_all = inputs[:-1], inputs[-1:]
        read = torch.cat([of_tasks.repeat_interleave(self.own, 0), of_all.expand(self.shared, -1, -1)])
        experts: torch.Tensor = self.experts(read)
        separate, shared = experts[: self.tasks * self.own], experts[self.tasks * self.own :]
        # Blocks [tasks, experts, n, width].
        by_task = torch.cat(
            [separate.view(self.tasks, self.own, *separate.shape[1:]), shared.expand(self.tasks, -1, -1, -1)], dim=1
        )
        mixed = torch.einsum("tne,tenh->tnh", self.gates(of_tasks).softmax(2), by_task)
        if self.shared_gate is None:
            return mixed
        common = torch.einsum("ne,enh->nh", self.shared_gate(of_all.squeeze(0)).softmax(1), experts)
        return torch.cat([mixed, common.unsqueeze(0)])


class ProgressiveExtraction(nn.Module):
    """Levels of experts in series, then a tower for each task. All experts of the first level read the same inputs."""

    def __init__(self, shape: InputShape, settings: Ple) -> None:
        super().__init__()
        self.inputs, self.tasks = SideBySide(shape, settings), shape.tasks
        widths = [self.inputs.width, *[settings.expert[-1]] * (settings.layers - 1)]
        self.levels = nn.Sequential(
            *(
                Extraction(shape.tasks, width, settings, level == settings.layers)
                for level, width in enumerate(widths, start=1)
            )
        )
        self.towers = parallel_networks(shape.tasks, settings.expert[-1], settings.tower, 1, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        mixed = self.levels(self.inputs(batch).expand(self.tasks + 1, -1, -1))
        logits: torch.Tensor = self.towers(mixed)
        return logits.squeeze(2).t()


build = ProgressiveExtraction
