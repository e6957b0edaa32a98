"""What a drill has measured, and whether the job recovered as it should."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from persia_cli.drill.plan import Disturbance


@dataclass
class StrikeResult:
    """One disturbance and what came of it; times are in seconds after it began."""

    disturbance: Disturbance
    step: int
    """Last step that was recorded when it began."""
    at: float
    """When it began, in seconds since 1970."""
    over: float = 0.0
    """When it was over, in seconds since 1970."""
    noticed_s: float | None = None
    """Until the job knew of it, as it recorded; None if nothing in the job has to know."""
    recovered_s: float | None = None
    """Until the job recorded that it had recovered; if it recorded nothing, until its next line of metrics."""
    caught_up_s: float | None = None
    """Until it had recorded a step that it had not reached before."""
    standstill_s: float | None = None
    """The longest time from then on in which it recorded no new step, until it had recovered."""
    text: str = ""
    """What happened, in the words of the job."""
    repeated: dict[str, int] = field(default_factory=dict)
    """What was done again, as the job recorded."""
    went_back: bool = False
    """True if the job went back to a checkpoint."""
    damaged: int = 0
    """Damaged messages that were sent."""
    problem: str = ""
    """Why the job did not recover."""

    def as_object(self) -> dict[str, Any]:
        """Return it for JSON."""
        fields = asdict(self)
        disturbance = fields.pop("disturbance")
        return {
            "kind": disturbance["kind"],
            "targets": list(disturbance["targets"]),
            "for_s": disturbance["for_s"],
            **fields,
        }


@dataclass(frozen=True)
class UpdateCounts:
    """Updates as servers counted them, of all servers together, since the job last went back to a checkpoint."""

    applied: int
    """In the model."""
    twice: int
    """More than there are."""
    lost: int
    """Fewer than there are."""
    repeated: int
    """Those that came again and changed nothing."""


@dataclass
class DrillResult:
    """The result of a drill."""

    run_dir: Path
    mode: str
    steps: int
    """Steps of the training, or the last one when the drill of a running job was over."""
    strikes: list[StrikeResult]
    counts: UpdateCounts | None
    """None of a job that goes on, or that has failed."""
    samples_repeated: int
    """Samples that were trained more than once."""
    auc: dict[str, float | None] = field(default_factory=dict)
    """AUC of each label in the last evaluation."""
    auc_undisturbed: dict[str, float | None] | None = None
    """The same of the run that was not disturbed; None if there was none."""
    same_model: bool | None = None
    """Whether all rows and weights have the values of the undisturbed run; None without one, and where
    two runs may differ anyway: in other modes than sync, and with several NN workers."""
    undisturbed: Path | None = None
    problems: list[str] = field(default_factory=list)
    """Why the job did not recover as it should; empty if it did."""

    @property
    def auc_difference(self) -> float | None:
        """The largest difference of a label's AUC to that of the undisturbed run; None if there is none."""
        pairs = [(self.auc.get(name), value) for name, value in (self.auc_undisturbed or {}).items()]
        found = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        return max(found, key=abs, default=None)

    def as_object(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "run_dir": str(self.run_dir),
            "undisturbed": str(self.undisturbed) if self.undisturbed else None,
            "mode": self.mode,
            "steps": self.steps,
            "recovered": not self.problems,
            "problems": self.problems,
            "updates_applied": self.counts.applied if self.counts else None,
            "updates_applied_twice": self.counts.twice if self.counts else None,
            "updates_lost": self.counts.lost if self.counts else None,
            "repeats_refused": self.counts.repeated if self.counts else None,
            "samples_repeated": self.samples_repeated,
            "auc": self.auc,
            "auc_undisturbed": self.auc_undisturbed,
            "auc_difference": self.auc_difference,
            "same_model": self.same_model,
            "drills": [strike.as_object() for strike in self.strikes],
        }
