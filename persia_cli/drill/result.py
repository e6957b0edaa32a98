"""The measurements of a drill, from the record of the run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

SERVER = "embedding-server"


@dataclass
class DrillResult:
    """The result of a drill; times are in seconds after the kill. Without `problems` the job recovered correctly."""

    targets: tuple[str, ...]
    run_dir: Path
    mode: str
    step: int
    """Last recorded step when the targets were killed."""
    at: float
    """Time of the kill, in seconds since 1970."""
    noticed_s: float | None = None
    """Until the job recorded that it noticed."""
    recovered_s: float | None = None
    """Until the job recorded that it had recovered, or after a new start its next line of metrics."""
    standstill_s: float | None = None
    """The longest time without a new step that began before the job had recovered."""
    cause: str = ""
    """The cause, by the record of the job."""
    repeated: dict[str, int] = field(default_factory=dict)
    """Repeated work, by the record of the job."""
    samples_repeated: int = 0
    updates_applied: int | None = None
    """Updates missing in the model, by the counters of servers since the job last went back to a checkpoint."""
    updates_applied_twice: int | None = None
    updates_lost: int | None = None
    repeats_refused: int | None = None
    """Updates that arrived again and changed nothing."""
    auc: dict[str, float | None] = field(default_factory=dict)
    """AUC of each label in the last evaluation."""
    undisturbed: Path | None = None
    auc_undisturbed: dict[str, float | None] | None = None
    same_model: bool | None = None
    """True if all rows and weights equal those of the undisturbed run; None without one, and where two runs may differ
    anyway: in other modes than sync, and with several NN workers."""
    problems: list[str] = field(default_factory=list)

    @property
    def auc_difference(self) -> float | None:
        """The largest difference of a label's AUC to that of the undisturbed run; None if there is none."""
        pairs = [(self.auc.get(name), value) for name, value in (self.auc_undisturbed or {}).items()]
        found = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        return max(found, key=abs, default=None)

    def as_object(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        folders = {"run_dir": str(self.run_dir), "undisturbed": str(self.undisturbed) if self.undisturbed else None}
        more = {"recovered": not self.problems, "auc_difference": self.auc_difference}
        return asdict(self) | folders | more

    def take_recovery(self, events: Iterable[Mapping[str, Any]], batch_size: int) -> None:
        """Add the deaths and recoveries that the job recorded."""
        since = [event for event in events if event["time"] >= self.at]
        recovered = [event for event in since if event["event"] == "recovered"]
        # The event of a job that went back has the seconds since it noticed.
        noticed = [event["time"] for event in since if event["event"] == "died"]
        noticed += [event["time"] - event["seconds"] for event in recovered]
        if noticed:
            self.noticed_s = round(max(min(noticed) - self.at, 0.0), 3)
        if recovered:
            self.recovered_s = round(max(event["time"] for event in recovered) - self.at, 3)
        self.cause = "; ".join(dict.fromkeys(str(event["cause"]) for event in recovered))
        for event in recovered:
            for what, times in (event.get("repeated") or {}).items():
                self.repeated[what] = self.repeated.get(what, 0) + (times or 0)
        went_back = any("checkpoint" in event for event in recovered)
        again = self.repeated.get("training steps", 0) + (self.repeated.get("steps", 0) if went_back else 0)
        self.samples_repeated = again * batch_size
        without = [] if went_back else sorted(set(self.targets) - {event["replica"] for event in recovered})
        if without:
            self.problems.append(f"the job ended and recorded no recovery of {', '.join(without)}")

    def take_standstill(self, training: Iterable[Mapping[str, Any]]) -> None:
        """Measure the longest time without a new step that began before the job had recovered."""
        found = [(float(line["time"]), int(line["step"])) for line in training]
        highest = accumulate((step for _, step in found), max, initial=-1)
        new = [at for (at, step), before in zip(found, highest, strict=False) if step > before]
        until = self.at + (self.recovered_s or 0.0)
        gaps = [end - max(begin, self.at) for begin, end in pairwise(new) if end > self.at and begin <= until]
        self.standstill_s = round(max(gaps, default=0.0), 3)

    def take_updates(self, events: Sequence[Mapping[str, Any]], expected: int) -> None:
        """Compare the number of updates of each server with the number that it should have applied since its job began.

        A server's counter is in its shared memory, so it survives the process.
        """
        roles = [event for event in events if event["event"] == "roles"][-1]["roles"]
        servers = [role["updates"] for role in roles if role["role"] == SERVER]
        applied = [updates["applied"] for updates in servers if "applied" in updates]
        self.updates_applied = sum(applied)
        self.updates_applied_twice = sum(max(0, each - expected) for each in applied)
        self.updates_lost = sum(max(0, expected - each) for each in applied)
        self.repeats_refused = sum(int(updates.get("repeated", 0)) for updates in servers)
        if self.updates_applied_twice:
            self.problems.append(f"{self.updates_applied_twice:,} updates are in the model more than once")
        if self.updates_lost:
            self.problems.append(f"{self.updates_lost:,} updates were lost")
