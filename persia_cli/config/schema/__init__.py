"""The typed configuration: what the rest of the program sees of it; one file per group."""

from persia_cli.config.schema.cluster import Cluster
from persia_cli.config.schema.dataset import (
    ColumnSplit,
    Dataset,
    EvalSplit,
    EverySplit,
    FileSplit,
    GeneratedDataset,
    Generator,
    ParquetDataset,
    SparseFeature,
)
from persia_cli.config.schema.embedding import Embedding, HashStack, Table
from persia_cli.config.schema.mode import AsyncMode, HybridMode, Mode, SyncMode
from persia_cli.config.schema.model import CustomModel, Dlrm, Ffnn, Model
from persia_cli.config.schema.node import Node
from persia_cli.config.schema.optimizer import (
    Adagrad,
    Adam,
    ConstantSchedule,
    CosineSchedule,
    DenseOptimizer,
    Ftrl,
    Optimizer,
    OptimizerPair,
    RowwiseAdagrad,
    Schedule,
    Sgd,
    StepSchedule,
)
from persia_cli.config.schema.run import Checkpoint, Evaluation, Run, Training

__all__ = [
    "Adagrad",
    "Adam",
    "AsyncMode",
    "Checkpoint",
    "Cluster",
    "ColumnSplit",
    "ConstantSchedule",
    "CosineSchedule",
    "CustomModel",
    "Dataset",
    "DenseOptimizer",
    "Dlrm",
    "Embedding",
    "EvalSplit",
    "Evaluation",
    "EverySplit",
    "Ffnn",
    "FileSplit",
    "Ftrl",
    "GeneratedDataset",
    "Generator",
    "HashStack",
    "HybridMode",
    "Mode",
    "Model",
    "Node",
    "Optimizer",
    "OptimizerPair",
    "ParquetDataset",
    "RowwiseAdagrad",
    "Run",
    "Schedule",
    "Sgd",
    "SparseFeature",
    "StepSchedule",
    "SyncMode",
    "Table",
    "Training",
]
