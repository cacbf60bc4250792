"""What a study came to (study.json): one long table of labelled runs, and what its boards share.

Every table is a filter of it. Means, differences, p-values and verdicts are in no file:
``comparing`` computes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from layermem_bench.costs.closed_forms import Cost
from layermem_bench.run.folder import Solved

LOSS, RIGHT_ANSWERS = "validation loss", "right answers"
EVERY_STEP_RIGHT = "every step right"
"""Names of the metrics that runs are judged by."""
# Within names: "right answers by operands: 4"; a quantity of a layer, which is drawn and in no
# table; a quantity as a share of the plain decoder's beyond that.
BY_LEVEL, BY_LAYER, ABOVE_PLAIN = " by ", " by layer: ", " above plain"

Scale = Literal["tiny", "small", "paper"]
Direction = Literal["higher", "lower", "similar", "equal"]
State = Literal["ended", "diverged", "failed", "begun", "not begun"]
COLUMNS = (
    *("study", "board", "condition", "arm", "seed", "run", "run_id", "state", "metric", "step"),
    *("tokens", "flops", "value"),
)
"""The columns of the long table."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A quantity of one arm, computed of runs or without any: its values by seed or repeat."""

    metric: str
    arm: str
    by_seed: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How the values of a metric are written and read."""

    is_share: bool = False
    better: Literal["higher", "lower"] | None = None
    chance: float | None = None
    """What a guess comes to; None: there is none, or it differs between runs."""
    counted: bool = False
    """Whether values are counted in closed form, and so have no seeds."""


METRICS: Mapping[str, Metric] = {
    LOSS: Metric(better="lower"),
    RIGHT_ANSWERS: Metric(is_share=True, better="higher"),
    EVERY_STEP_RIGHT: Metric(is_share=True, better="higher"),
}


@dataclass(frozen=True, kw_only=True)
class TriedRates:
    """Learning rates that an arm tried, and the validation loss at each (None: it diverged)."""

    arm: str
    rates: tuple[float, ...]
    losses: tuple[float | None, ...]
    chosen: float | None
    """The rate that was taken; None: the arm diverged at every one."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """How long a step of each arm takes: the median seconds of its steps, and the median over
    rounds of its time over the first arm's."""

    KIND: ClassVar[str] = "steps"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem study"

    machine: str
    base: str
    """Digest of the run whose sizes were measured."""
    rounds: int
    seconds: Mapping[str, float]
    ratios: Mapping[str, float]
    arms: Mapping[str, str] = field(default_factory=dict)
    """Arm to a digest of the run whose steps were timed; arms of earlier versions have none."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm under one condition."""

    name: str
    steps: int
    parameters: int | None = None
    width_of_mlp: int | None = None
    """Width inside the mlp; None: it is that of a model of transformers."""
    rate: float | None = None
    """Learning rate that it took; None: none were tried."""
    note: str = ""
    """What it is, where its name does not say it, or why it has no values."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The arms of a board under one condition; the others are compared with the first.

    Its name says what is equal: "tokens", "time" or "parameters"; "recorded": runs are as they are.
    """

    name: str
    arms: tuple[Arm, ...]


@dataclass(frozen=True, kw_only=True)
class Board:
    """What the runs of some arms share, and what these tried and take; ranked by ``metric``."""

    name: str
    metric: str
    conditions: tuple[Condition, ...]
    preset: str = ""
    shape: str = ""
    """LAYERSxWIDTH, where it is a preset in another shape."""
    tried: tuple[TriedRates, ...] = ()
    steps: MeasuredSteps | None = None
    costs: tuple[Cost, ...] = ()
    """What the arms cost in closed form; those whose sizes are not known here are left out."""
    before: float | None = None
    """Validation loss before the first step, where all arms start from one."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One validation of a run after so many steps, tokens and closed-form FLOPs: the loss of a
    token in nats; the shares of problems with a right final answer and with every step right."""

    step: int
    val_loss: float
    tokens: float | None = None
    flops: float | None = None
    val_accuracy: float | None = None
    val_steps: float | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """A difference that a study is planned to tell: on a board under a condition an arm has a
    higher or a lower value than another. It is tested alone."""

    board: str
    condition: str
    arm: str
    direction: Literal["higher", "lower"]
    against: str
    metric: str = LOSS
    margin: float | None = None
    """A difference that would matter: of a smaller one it is enough to know that."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a study was planned as before its first run (plan.json)."""

    KIND: ClassVar[str] = "plan"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem study"

    seeds: tuple[int, ...]
    arms: tuple[str, ...]
    questions: tuple[Question, ...]
    untested: str = ""
    """Why nothing can be tested; empty: this plan is older than the runs."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run with its labels: planned, begun or ended. ``note``: of one that diverged or failed,
    what was seen. ``about``: versions, commit, machine and command, as recorded."""

    name: str
    run_id: str
    folder: str
    state: State
    note: str = ""
    board: str = ""
    conditions: tuple[str, ...] = ()
    """The conditions that it counts under; empty: it chose a learning rate."""
    arm: str = ""
    seed: int = 0
    steps: int = 0
    max_steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of an ended run that counts: what it is judged by, by name."""
    validations: tuple[Validation, ...] = ()
    learning: tuple[tuple[float, float], ...] = ()
    """Steps, and the mean training loss since the one before."""
    tokens_per_second: float | None = None
    """Median over the run, by wall time; None: not recorded."""
    solved: Solved | None = None
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_to_come(self) -> bool:
        """Whether it has neither ended nor diverged."""
        return self.state not in ("ended", "diverged")

    def values(self) -> Iterator[dict[str, Any]]:
        """Yield what it is judged by, and its validations, each as columns of the long table."""
        for metric, value in self.metrics.items():
            yield {"metric": metric, "value": value}
        for each in self.validations:
            at = {"step": each.step, "tokens": each.tokens, "flops": each.flops}
            for metric in ("val_loss", "val_accuracy", "val_steps"):
                if (value := getattr(each, metric)) is not None:
                    yield {"metric": metric, "value": value, **at}


@dataclass(frozen=True, kw_only=True)
class PaperNumber:
    """A number that the paper prints, and where; shares are between 0 and 1."""

    quantity: str
    arm: str
    value: float
    where: str
    is_share: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A difference that the paper claims; "equal": to its own number, of what is counted."""

    quantity: str
    arm: str
    direction: Direction
    against: str | None = "plain"
    """The arm it differs from; None: the paper's number."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a row stands in a drawing of lines: in which line, and where on the axis across."""

    quantity: str
    arm: str
    line: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure of the paper: lines of the result's own numbers, the paper's beside them."""

    up: str
    across: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What was seen inside a model, in named panels: shares [layer, source layer] that routers read
    ("heatmap"), shares [head, source layer] of each layer ("heads"), or points [x, y] of each layer
    with the word that each is ("words")."""

    kind: Literal["heatmap", "heads", "words"]
    name: str
    panels: Mapping[str, tuple[tuple[float, ...], ...]]
    labels: tuple[int, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OfPaper:
    """What a study is of the paper; all of it is empty where it is no artefact of the paper."""

    scale: Scale | None = None
    claim: str = ""
    papers: tuple[PaperNumber, ...] = ()
    claims: tuple[Claim, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    notes: tuple[str, ...] = ()
    """What tempers the comparison with the paper."""
    missing: str = ""
    """What cannot be evaluated here, and why."""


@dataclass(frozen=True, kw_only=True)
class StudyResult(OfPaper):
    """Everything that a study's page shows; of runs those too that are in no mean."""

    KIND: ClassVar[str] = "study"
    VERSION: ClassVar[int] = 3
    COMMAND: ClassVar[str] = "layermem study"

    command: str
    name: str
    """The study; "report": runs that were named one by one."""
    title: str
    seeds: tuple[int, ...]
    boards: tuple[Board, ...]
    metrics: Mapping[str, Metric]
    runs: tuple[RunRecord, ...]
    questions: tuple[Question, ...] = ()
    """What was asked before the first run; then tables only describe."""
    untested: str = ""
    """Why tables only describe all the same; empty: arms are tested beside each other."""
    rows: tuple[Row, ...] = ()
    """What was computed of them, or without any."""
    pictures: tuple[Picture, ...] = ()

    def metric(self, name: str) -> Metric:
        """Return the metric of a name, which may be recorded nowhere."""
        return self.metrics.get(name, Metric())

    def of(self, board: str, condition: str) -> list[RunRecord]:
        """Return the runs that count on a board under a condition."""
        return [run for run in self.runs if run.board == board and condition in run.conditions]

    def values(self, board: str, condition: str, metric: str) -> dict[str, dict[int, float]]:
        """Return the values of ended runs by arm and seed."""
        values: dict[str, dict[int, float]] = {}
        for run in self.of(board, condition):
            if metric in run.metrics:
                values.setdefault(run.arm, {})[run.seed] = run.metrics[metric]
        return values

    def to_come(self, board: str, condition: str) -> int:
        """Return how many runs of a table are to come: nothing is tested before they have ended."""
        return sum(run.is_to_come for run in self.of(board, condition))

    def computed(self, metric: str) -> dict[str, Mapping[int, float]]:
        """Return the values of a quantity that was computed of runs, by arm and seed."""
        return {row.arm: row.by_seed for row in self.rows if row.metric == metric}

    def long_table(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each value of each run under each condition.

        A run that chose a learning rate is under no condition. A run without values has one row,
        whose state says why.
        """
        for run in self.runs:
            labels = {name: getattr(run, name) for name in ("board", "arm", "seed", "run_id")}
            labels |= {"study": self.name, "run": run.name, "state": run.state}
            for condition in run.conditions or (None,):
                for values in list(run.values()) or [{}]:
                    yield dict.fromkeys(COLUMNS) | labels | {"condition": condition} | values
