"""The numbers behind `auto`: what a setting is where no one has chosen it, by the size of the data."""

from persia_cli.config.schema import Optimizer

SMALL_ROWS = 1_000_000
"""Training rows below which hidden layers have dropout."""
DROPOUT = 0.2
SMALL_BATCH, BATCH, BATCH_ROWS = 128, 256, 51_200
"""Samples of a step below BATCH_ROWS training rows, and from there on: at least 200 steps in an epoch.

Batches of 32 for a few thousand rows lost AUC on five tables of five (by .001 to .006), and took twice the time."""
RATES = {"adagrad": 0.05, "rowwise_adagrad": 0.05, "ftrl": 0.05, "adam": 0.001, "rowwise_adam": 0.001, "sgd": 0.1}
"""Learning rate of rows for each optimizer."""
FEW_ROWS = 100_000
RATES_OF_FEW = RATES | {"adagrad": 0.02, "rowwise_adagrad": 0.02}
"""The rates for fewer training rows than FEW_ROWS."""

MAX_ROWS = 5_000_000
"""Training rows above which one pass over the data is enough; click models overfit in the second."""
MAX_EPOCHS, MAX_EPOCHS_OF_MANY = 100, 20
"""Most epochs below SMALL_ROWS, and above."""
MAX_SAMPLES = 50_000_000
"""Samples that a training takes at most, in all epochs."""
EVALUATION_STEPS = (50, 200)
"""Steps of an epoch below which several come between evaluations, and from which on there are two evaluations in it."""
PATIENCE_EPOCHS, PATIENCE_EVALUATIONS, PATIENCE_STEPS = 2, 5, 500
"""Training ends after as many epochs, evaluations and steps without improvement: when all three have passed."""


def is_small(train_rows: int) -> bool:
    """Return True for so few training rows that a network would learn them by heart."""
    return train_rows < SMALL_ROWS


def batch_size(train_rows: int, parts: int) -> int:
    """Return the samples of a step, a multiple of the `parts` that it is divided into."""
    size = SMALL_BATCH if train_rows < BATCH_ROWS else BATCH
    return -(-size // parts) * parts


def row_rate(optimizer: Optimizer, train_rows: int) -> float:
    """Return the learning rate of the rows of tables."""
    return (RATES_OF_FEW if train_rows < FEW_ROWS else RATES)[optimizer.kind]


def most_epochs(train_rows: int) -> int:
    """Return the most epochs of a training that ends when evaluations no longer improve."""
    most = MAX_EPOCHS if is_small(train_rows) else MAX_EPOCHS_OF_MANY
    return max(1, min(most, MAX_SAMPLES // train_rows))


def patience(epoch_steps: int, interval: int) -> int:
    """Return the evaluations without improvement after which training ends; `interval` is the steps between two."""
    steps = max(PATIENCE_EPOCHS * epoch_steps, PATIENCE_STEPS)
    return max(PATIENCE_EVALUATIONS, -(-steps // interval))
