"""Settings of both sides: one description of a training, with names of neither."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Settings:
    """A training until the metric of the validation samples rises no more.

    Adam on both sides: FuxiCTR's moves every row in each step, ours those of the batch.
    """

    network: str
    seed: int
    dim: int = 10
    hidden: list[int] = field(default_factory=lambda: [400, 400, 400])
    batch: int = 4096
    lr: float = 0.001
    epochs: int = 100
    patience: int = 2
    """Evaluations, one after each epoch, that may be no better than the best one before training ends."""
    plateau: bool = True
    """A tenth of the learning rate after each evaluation that is no better than the best one."""
    norm: bool = True
    """Batch normalisation in the perceptron."""
    dropout: float = 0.2
    clip: float = 10.0
    """Greatest norm of the gradient: of all weights in FuxiCTR, of the dense ones in ours."""
    row_clip: float = 0.01
    """Greatest norm of a row's gradient with `norm`, in ours; 0 for any.

    Behind batch normalisation the first gradients of rows near 0 are hundreds of times as large as later ones, and Adam
    remembers their squares for a thousand steps. FuxiCTR's `clip` makes them small in its first step, with all others.
    """
    row_beta1: float = 0.0
    """Decay of the mean of a row's gradients, in ours; FuxiCTR's is 0.9.

    Its Adam goes on with the mean in all steps until the row's next gradient, which comes to about a whole gradient in
    the end. Ours moves a row with its gradients alone, so with 0.9 a rare row gets but a tenth of each.
    """
    row_l2: float = 0.0
    """FuxiCTR adds it for every row in each step, ours for the rows of the batch."""
    dense_l2: float = 0.0
    threads: int = 2

    def plain(self) -> "Settings":
        """Return the same without what makes a network general: normalisation, dropout, L2."""
        return replace(self, norm=False, dropout=0.0, row_l2=0.0, dense_l2=0.0)

    def words(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)
