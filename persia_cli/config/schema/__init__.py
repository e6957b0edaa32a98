"""The typed configuration that the rest of the program uses; one file per group. All imports are for others."""

from persia_cli.config.schema.base import Node
from persia_cli.config.schema.checkpoint import Checkpoint
from persia_cli.config.schema.cluster import (
    Cluster,
    EmbeddedCluster,
    HostsCluster,
    KubernetesCluster,
    LocalCluster,
    ProcessReplicas,
    RayCluster,
    RoleResources,
    SlurmCluster,
    SpreadReplicas,
    SshHost,
    Volume,
)
from persia_cli.config.schema.dataset import Dataset, GeneratedDataset, Generator, ParquetDataset
from persia_cli.config.schema.embedding import Embedding, HashStack, Table
from persia_cli.config.schema.factorization import Afm, DeepFm, FibiNet, Fm, Lr, WideDeep, XDeepFm
from persia_cli.config.schema.features import SparseFeature
from persia_cli.config.schema.follow import Follow, Trap, Until
from persia_cli.config.schema.init_from import InitFrom, VectorFile
from persia_cli.config.schema.interactions import AutoInt, DcnV2, Dlrm, Ffnn, FinalMlp, FinalNet, Gdcn, MaskNet
from persia_cli.config.schema.loss import (
    BCE,
    Bce,
    Bpr,
    Focal,
    Huber,
    InBatchSoftmax,
    Loss,
    Mse,
    Pairwise,
    Poisson,
    SampledSoftmax,
)
from persia_cli.config.schema.mode import AsyncMode, HybridMode, Mode, SyncMode
from persia_cli.config.schema.model import Branches, CustomModel, Model
from persia_cli.config.schema.optimizer import (
    Adagrad,
    Adam,
    AdamW,
    ConstantSchedule,
    CosineSchedule,
    DenseAdagrad,
    DenseAdam,
    DenseOptimizer,
    DenseSgd,
    Ftrl,
    OneCycleSchedule,
    Optimizer,
    OptimizerPair,
    PlateauSchedule,
    RowwiseAdagrad,
    RowwiseAdam,
    Schedule,
    Sgd,
    StepSchedule,
)
from persia_cli.config.schema.publish import Publish, PublishGuard
from persia_cli.config.schema.run import EarlyStop, Evaluation, Run, Training
from persia_cli.config.schema.sequences import Bst, Dien, Din, Hstu, Ligr, SasRec, TwoTower
from persia_cli.config.schema.split import (
    ColumnSplit,
    EvalSplit,
    EverySplit,
    FileSplit,
    HashSplit,
    LastSplit,
    PredictSplit,
    TimeSplit,
    TrainSplit,
)
from persia_cli.config.schema.tasks import Esmm, Mmoe, Ple
