"""The base rate of each label, the initial output of a new network."""

import math
from collections.abc import Callable, Mapping

from persia_cli.config.schema import Esmm, Run
from persia_cli.errors import DataError
from persia_cli.metric import Link
from persia_cli.model.requirements import require_fit
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.network import input_shape

_OUTPUTS: Mapping[Link, Callable[[float], float]] = {
    "logistic": lambda mean: math.log(mean) - math.log1p(-mean),
    "identity": lambda mean: mean,
    "exp": math.log,
}
"""The output of a network that predicts a mean: the inverse of each link."""


def with_base_rate(run: Run) -> Run:
    """Return the run with numbers in place of `model.output_bias=base_rate`: the outputs that predict labels' means.

    The means are over the training rows, by their weights if they have any. Their labels are read for it once per
    training, whose configuration then has the numbers. Raise DataError if no output predicts a mean, and ConfigError
    for a network without such a bias.
    """
    if run.model.output_bias != "base_rate":
        return run
    require_fit(run.model, input_shape(run, embedding_layout(run)))
    from persia_cli.data.read.label_means import label_means  # needs pyarrow

    means = label_means(run.dataset, run.seed, run.links, isinstance(run.model, Esmm))
    outputs = []
    for (name, link), mean in zip(run.links.items(), means, strict=True):
        if mean is None:
            raise DataError(
                f"model.output_bias=base_rate: label {name} is null, or the weight 0, in all training rows, so it has "
                "no base rate; correct the data, or leave model.output_bias out"
            )
        try:
            outputs.append(_OUTPUTS[link](mean))
        except ValueError:
            raise DataError(
                f"model.output_bias=base_rate: label {name} is {mean:g} in all training rows, which no network "
                "predicts; correct the label, or leave model.output_bias out"
            ) from None
    return run.model_copy(update={"model": run.model.model_copy(update={"output_bias": tuple(outputs)})})
