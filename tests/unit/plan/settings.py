"""Settings of optimizers, schedules and tables as in a configuration."""

from hypothesis import strategies as st

from tests.support.runs import SGD

ADAM = {"kind": "adam", "lr": 0.01, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6}
ADAGRAD = {"kind": "adagrad", "lr": 0.05, "l2": 0.6, "initial_accumulator_value": 0.2, "eps": 1e-9}
ROWWISE = ADAGRAD | {"kind": "rowwise_adagrad", "weight_decay": 0.3}
ROWWISE_ADAM = {"kind": "rowwise_adam", "lr": 0.01, "beta2": 0.99, "eps": 1e-6, "l2": 0.6, "weight_decay": 0.3}
FTRL = {"kind": "ftrl", "lr": 0.05, "beta": 2.0, "l1": 0.1, "l2": 0.2, "initial_accumulator_value": 0.4}
STEP = {"kind": "step", "warmup_steps": 3, "every_steps": 5, "factor": 0.25}
COSINE = {"kind": "cosine", "warmup_steps": 4, "over_steps": 50, "floor": 0.125}

TABLE = st.fixed_dictionaries(
    {},
    optional={
        "dim": st.integers(1, 64),
        "dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
        "optimizer": st.sampled_from([SGD, ADAGRAD, ROWWISE, ADAM, ROWWISE_ADAM, FTRL]),
        "clip_norm": st.sampled_from([1.0, 2.0]),
    },
)
NAMES = st.sampled_from([f"t{i}" for i in range(12)])
TABLES = st.dictionaries(NAMES, TABLE, min_size=1)
