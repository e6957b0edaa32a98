"""The keys that a search chooses from by default: those that usually matter, around the values of the run."""

from collections.abc import Collection

from persia_cli.config.schema import Run
from persia_cli.config.schema.perceptrons import Perceptrons

RATE = 0.05
"""Learning rate of rows that stands for one that the data decide."""


def usual_space(run: Run, given: Collection[str]) -> list[str]:
    """Return arguments of a search; given keys stay unchanged."""
    rate = run.optimizer.embedding.lr if isinstance(run.optimizer.embedding.lr, float) else RATE
    found = {
        "optimizer.embedding.lr": f"tag(log,interval({rate / 10:g},{rate * 3:g}))",
        "model.dim": f"{run.model.dim},{2 * run.model.dim}",
    }
    model = run.model
    if isinstance(model, Perceptrons) and any(getattr(model, name) for name in model.LISTS):
        found |= {"model.norm": "none,batch", "model.dropout": "0.0,0.1,0.2,0.3,0.4"}
    if isinstance(model, Perceptrons) and (widths := getattr(model, "hidden", ())):
        smaller = [max(1, width // 2) for width in widths]
        found["model.hidden"] = ",".join(str(list(each)).replace(" ", "") for each in (smaller, widths))
    return [f"{key}={values}" for key, values in found.items() if key not in given]
