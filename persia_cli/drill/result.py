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
    """Last step that was applied when it began."""
    at: float
    """When it began, in seconds since 1970."""
    over: float = 0.0
    """When it was over, in seconds since 1970."""
    noticed_s: float | None = None
    """Until the job knew of it, as it recorded; None if nothing in the job has to know."""
    recovered_s: float | None = None
    """Until the job said that all was well; if it has nothing to say, until every server applied updates again."""
    caught_up_s: float | None = None
    """Until every server had applied an update of a step that none had reached before."""
    standstill_s: float | None = None
    """The longest time from then on in which a server reached no new step, until the job had recovered."""
    text: str = ""
    """What happened, in the words of the job."""
    repeated: dict[str, int] = field(default_factory=dict)
    """What was done again, as the job recorded."""
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
    """Updates of the whole job, counted by servers: one for each server, rank and step."""

    applied: int
    """In the model, each once."""
    twice: int
    """In the model more than once."""
    lost: int
    """Of steps that were trained, and not in the model."""
    taken_back: int
    """Applied, and undone when the job or a server went back to a checkpoint."""
    steps_again: int
    """Steps of ranks that were trained again for that reason; updates that are lost are not."""
    left_out: int = 0
    """Entries for which the account had no room: the counts are not whole if there are any."""


@dataclass
class DrillResult:
    """The result of a drill."""

    run_dir: Path
    mode: str
    steps: int
    """Steps of the training, or the last one when the drill of a running job was over."""
    strikes: list[StrikeResult]
    counts: UpdateCounts
    repeats_refused: int | None
    """Updates that came again and changed nothing, as servers counted; None while the job goes on."""
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
            "updates_applied": self.counts.applied,
            "updates_applied_twice": self.counts.twice,
            "updates_lost": self.counts.lost,
            "updates_taken_back": self.counts.taken_back,
            "repeats_refused": self.repeats_refused,
            "samples_repeated": self.samples_repeated,
            "auc": self.auc,
            "auc_undisturbed": self.auc_undisturbed,
            "auc_difference": self.auc_difference,
            "same_model": self.same_model,
            "drills": [strike.as_object() for strike in self.strikes],
        }
