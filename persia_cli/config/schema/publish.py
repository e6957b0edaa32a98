"""The settings of publishing: the folder of versions that a server follows, and how often there is a new one."""

from persia_cli.config.schema.base import Count, Node, Positive, Seconds
from persia_cli.config.schema.checkpoint import Place


class PublishGuard(Node):
    """Bounds of the evaluation of each version, for each label; with a bound, versions come after evaluations alone."""

    ne: Positive | None = None
    """Greatest normalised entropy; null: any."""
    calibration: Positive | None = None
    """Greatest factor between the sums of predictions and of labels, such as 1.1, in either direction; null: any."""

    @property
    def is_set(self) -> bool:
        """True if it has a bound."""
        return self.ne is not None or self.calibration is not None


class Publish(Node):
    """The versions of the model that are published while it is trained."""

    to: Place
    """Folder that a server follows, or its URI; only one run publishes there."""
    every_s: Seconds = 5.0
    """Least seconds between versions; there is none while nothing is trained, and one at the end."""
    base_every: Count = 500
    """Versions after which one is a whole model, and not only what has changed."""
    guard: PublishGuard = PublishGuard()
    """When versions are held back."""
