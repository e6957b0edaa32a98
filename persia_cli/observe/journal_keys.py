"""The keys of `metrics.jsonl` and the events of `events.jsonl`, as the reference page shows them."""

from typing import Literal, NamedTuple

Lines = Literal["all", "train", "eval"]


class Metric(NamedTuple):
    """A key of a line of metrics; `lines` are those that have it: `eval` includes test lines."""

    lines: Lines
    unit: str
    meaning: str


METRIC_KEYS: dict[str, Metric] = {
    "time": Metric("all", "s", "time since 1970"),
    "step": Metric("all", "steps", "steps trained so far"),
    "samples": Metric("all", "samples", "samples trained so far"),
    "split": Metric("all", "", "`train`, `eval`, or `test` (once, at the end, with the best checkpoint)"),
    "loss": Metric("all", "", "mean loss of the interval, or of the evaluation"),
    "auc": Metric("all", "0 to 1", "area under the ROC curve: how often a positive sample scores above a negative one"),
    "pr_auc": Metric("all", "0 to 1", "average precision, the area under the curve of precision and recall"),
    "accuracy": Metric("all", "0 to 1", "fraction of correct predictions, with the threshold 1/2"),
    "log_loss": Metric("all", "nats", "mean binary cross-entropy"),
    "ne": Metric("all", "", "log loss divided by that of always predicting the mean label"),
    "calibration": Metric("all", "", "sum of predictions divided by sum of labels"),
    "rmse": Metric("all", "of the label", "root mean squared error, for losses `mse`, `huber` and `poisson`"),
    "mae": Metric("all", "of the label", "mean absolute error, for the same losses"),
    "r2": Metric("all", "", "fraction of explained variance, for the same losses"),
    "samples_per_s": Metric("all", "1/s", "speed of the slowest rank"),
    "gpu_memory": Metric("all", "bytes", "most memory that a rank has allocated on its GPU so far; absent on a CPU"),
    "bad_rows": Metric(
        "all", "rows", "rows left out since they cannot be read (`dataset.max_bad_rows`); absent if none"
    ),
    "rows": Metric("all", "rows", "rows of all tables in memory after the look-ups of this step"),
    "evicted": Metric("all", "rows", "rows that have left memory for others so far"),
    "hit_rate": Metric("all", "0 to 1", "fraction of the distinct ids of each training batch that had a row"),
    "look_up_hit_rate": Metric("all", "0 to 1", "fraction of all look-ups of training that found a row"),
    "cold_rows": Metric("all", "rows", "with `embedding.cold`: rows on disks after the look-ups of this step"),
    "cold_dropped": Metric("all", "rows", "rows lost since the start, because `embedding.cold.size` was used up"),
    "memory_hit_rate": Metric("all", "0 to 1", "since the line before: fraction of `hit_rate` answered from memory"),
    "cold_hit_rate": Metric("all", "0 to 1", "the same from disks; the rest are new ids"),
    "cold_reads_per_s": Metric("all", "1/s", "rows read from disks, or from the page cache"),
    "cold_wait_ms": Metric("all", "ms", "for each step, the wait of requests for these reads on the slowest server"),
    "cold_written": Metric("all", "bytes", "bytes written to disks since the start"),
    "staleness_mean": Metric("train", "steps", "mean staleness in the interval, over all ranks"),
    "staleness_max": Metric("train", "steps", "greatest staleness in the interval"),
    "staleness": Metric("train", "steps", "one object per rank: number of steps by staleness"),
    "behind_s": Metric("train", "s", "with `dataset.follow`: age of the oldest file that is not trained"),
    "behind_data_s": Metric("train", "s", "age of the newest sample of the present portion, by `dataset.follow.time`"),
    "versions_held": Metric("train", "0 or 1", "with `publish.guard`: 1 while versions are held back"),
    "decayed_auc": Metric("eval", "0 to 1", "with `eval.next`: mean over portions; each counts 0.9 times the next"),
    "decayed_loss": Metric("eval", "", "the same of `loss`"),
    "decayed_ne": Metric("eval", "", "the same of `ne`"),
    "decayed_calibration": Metric("eval", "", "the same of `calibration`"),
    "eval_samples": Metric("eval", "samples", "samples of the evaluation"),
    "unknown": Metric("eval", "0 to 1", "fraction of looked-up ids without a row, which read as zeros; repeats count"),
    "gauc": Metric("eval", "0 to 1", "AUC within each query of `dataset.group_by`, averaged by number of samples"),
    "recall@K": Metric("eval", "0 to 1", "fraction of a query's relevant items among the first K"),
    "ndcg@K": Metric("eval", "0 to 1", "discounted gain of the first K, relative to the best possible"),
    "hr@K": Metric("eval", "0 to 1", "fraction of queries with a relevant item among the first K"),
    "mrr": Metric("eval", "0 to 1", "mean of 1 / rank of the first relevant item"),
}
"""Keys from `cold_rows` to `cold_written` appear only with `embedding.cold`, retrieval metrics only with
`eval.retrieval`, quality metrics once per label, with its name at the end."""


class Event(NamedTuple):
    """A kind of event: the keys that its lines may have besides `time` and `event`, and when it is written."""

    keys: tuple[str, ...]
    meaning: str


PHASE_KEYS = ("phase", "step", "error", "exit_code", "signal", "replica", "text")
EVENT_KINDS: dict[str, Event] = {
    "compiling": Event(("done", "total", "kernel"), "a kernel is compiled before the job starts"),
    "began": Event(("host", "pid"), "the coordinator started; it locks the file until it ends"),
    "warm_start": Event(
        ("checkpoint", "step", "tables", "vectors", "new", "unused", "dense"),
        "sources of the first rows and weights of a run with `init_from`",
    ),
    "ready": Event(("parameters", "replicas"), "all replicas are ready: their names, processes and hosts"),
    "phase": Event(
        PHASE_KEYS,
        "a phase starts: `training`, `evaluating`, `predicting`, `saving`, `idle` (no new files, or a pause of "
        "a benchmark) or `done`; or the job "
        "`failed` (`error`, `exit_code`) or was `stopped` (`signal`, `replica`, `text`)",
    ),
    "ending": Event(("signal", "replica", "grace_s"), "a signal arrived: the model is saved, then the job ends"),
    "note": Event(("text",), "a message for the user, once per cause"),
    "warning": Event(("text", "killed"), "a warning, once per cause; `killed` is the pid of a silent replica"),
    "bad_rows": Event(
        ("rows", "text"), "rows are left out: how many so far (`dataset.max_bad_rows`), and the reason of one of them"
    ),
    "waiting": Event(("replica", "doing", "seconds"), "all replicas wait for this one"),
    "died": Event(("replica", "pid", "cause"), "a process died and will be replaced"),
    "recovered": Event(
        ("replica", "cause", "pid", "checkpoint", "seconds", "repeated"),
        "a recovery is complete: its duration, and the `steps`, `batches` or `requests` that were repeated",
    ),
    "progress": Event(
        ("doing", "rows", "of", "rows_per_s", "eta_s"), "progress of a long evaluation, prediction or load"
    ),
    "reliability": Event(
        ("step", "labels"),
        "calibration curve of an evaluation, in up to 20 bins per label: `predicted`, `observed` and `weight`",
    ),
    "calibrated": Event(
        ("step", "labels", "metrics", "reliability"),
        "a slope and a shift were fitted on an evaluation (`train.calibrate`): `task`, `label`, `slope`, `shift` and "
        "`log_loss` before and after, of each label; the metrics and curves of the evaluation that they change",
    ),
    "best": Event(("metric", "step", "value"), "the best evaluation so far"),
    "stopped_early": Event(("step", "text"), "`train.stop_early` ended training"),
    "saved": Event(("path", "step", "trigger", "nbytes", "rows"), "a checkpoint is complete"),
    "save_failed": Event(
        ("step", "given_up", "text", "retry_s"),
        "a checkpoint could not be written, the `given_up`-th so far; it is tried again after `retry_s` seconds",
    ),
    "cut": Event(
        ("path", "step", "since", "nbytes", "rows", "seconds"),
        "a cut for the publisher is complete (`publish`): its rows were used in step `since` or later",
    ),
    "scored": Event(("path", "rows", "spread"), "a file of predictions is complete"),
    "roles": Event(
        ("roles",),
        "at the end, of each replica: `cpu_s`, `rss` (bytes), `ran_s` and `waited_s` (seconds since it started, and "
        "those without work), `messages`, `links` (bytes), `exchanged` (messages and bytes), `updates` and `counts`. "
        "Of an embedding server, `updates` has `applied`, `repeated`, `rows_written`, `save_pauses`, `save_waits_ms`",
    ),
    "tables": Event(("tables",), "at the end: [counters](#counters-of-a-table) by table, over all servers"),
}

OF_EVALUATIONS = ("reliability", "calibrated")
"""The events that describe an evaluation: a job that goes on from a checkpoint keeps them with its lines of metrics."""

LOOK_UP_COUNTERS = {
    "look_ups": "all look-ups of training, repeats included",
    "look_ups_known": "those of them that found a row",
    "reads": "look-ups of evaluation and prediction, repeats included",
    "reads_known": "those of them that found a row",
    "reads of FEATURE": "the same of one feature, if several features read the table",
    "reads_known of FEATURE": "those of them that found a row",
}
"""Counters of a table that embedding workers add to those of `persia_cli.store.table_counters.TableCounters`."""
