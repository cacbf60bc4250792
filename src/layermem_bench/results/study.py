"""What a study came to (study.json): its runs with their values, its boards, the paper's claims.

Means, differences, p-values and verdicts are in no file: ``comparing`` computes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from layermem_bench.results.costs import CostPoint
from layermem_bench.results.solved import Solved

LOSS = "validation loss"
RIGHT_ANSWERS = "right answers"
EVERY_STEP_RIGHT = "every step right"
"""Names of the metrics that runs are judged by."""
BY_LEVEL = " by "
"""Between a metric and the level of problems: "right answers by operands: 4"."""
BY_LAYER = " by layer: "
"""Between a quantity and a layer that it is of, which is drawn and in no table."""
ABOVE_PLAIN = " above plain"
"""After a quantity as a share of the plain decoder's beyond that: below 0 where it is less."""

Scale = Literal["tiny", "small", "paper"]
Direction = Literal["higher", "lower", "similar", "equal"]
State = Literal["ended", "diverged", "failed", "begun", "not begun"]
Looks = tuple[tuple[int, ...], ...]
"""The seeds of each look at some runs, the newest last."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A quantity of one arm, computed from runs or without any: its values by seed; of what is
    measured by repeat; of what is counted one value."""

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
    """Learning rates that one arm was trained with, on a seed kept for that, and the validation
    loss at each (None: the run diverged)."""

    arm: str
    rates: tuple[float, ...]
    losses: tuple[float | None, ...]
    chosen: float | None
    """The rate that was taken; None: that is at another weight decay, or the arm diverged at every
    one."""
    decay: float | None = None
    """Weight decay they were tried with; None: no others were tried."""
    right: tuple[float | None, ...] = ()
    """Right answers at each, where the choice is by these."""
    own_rates: tuple[float, ...] = ()
    """Learning rate of the parameters that the arm adds, tried with each; empty: none was."""
    own_chosen: float | None = None
    """The one that was taken with ``chosen``."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """How long a training step of each arm takes, against the first arm's in the same rounds: the
    median seconds of its steps, and the median over rounds of its time over the first arm's."""

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
class MeasuredMemory:
    """How much memory a training step of each arm takes, with its model and its optimiser."""

    KIND: ClassVar[str] = "memory"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem study"

    machine: str
    base: str
    peaks: Mapping[str, int | None]
    """Arm to the peak bytes; None: the system does not report a peak."""
    arms: Mapping[str, str] = field(default_factory=dict)
    """As of ``MeasuredSteps``."""


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
    looks: Looks = ()
    """Seeds of each look at these runs, this one last; empty: the first look."""


@dataclass(frozen=True, kw_only=True)
class SettingCosts:
    """What the arms of a board cost in closed form: at their own sizes, and those of the first size
    at other depths and widths."""

    points: tuple[CostPoint, ...] = ()
    layers: tuple[CostPoint, ...] = ()
    width: tuple[CostPoint, ...] = ()
    measure_command: str | None = None
    """Command that measures the arms; None: their sizes are no preset's."""


@dataclass(frozen=True, kw_only=True)
class Board:
    """What the runs of some arms share: data, sizes, how they are trained; and what arms are ranked
    by (``metric``), tried and take."""

    name: str
    metric: str
    conditions: tuple[Condition, ...]
    preset: str = ""
    shape: str = ""
    """LAYERSxWIDTH, where it is a preset in another shape."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the runs' config that name the data, and the data's digest where it is recorded."""
    tried: tuple[TriedRates, ...] = ()
    steps: MeasuredSteps | None = None
    memory: MeasuredMemory | None = None
    costs: SettingCosts = field(default_factory=SettingCosts)
    before: float | None = None
    """Validation loss before the first step, where all arms start from one."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One validation of a run, and what it was trained on before: steps, tokens, closed-form FLOPs.

    The loss is the mean of a token, in nats. Accuracy (the final answer is right) and steps (every
    step is) are shares of a task's validation problems.
    """

    step: int
    val_loss: float
    tokens: float | None = None
    flops: float | None = None
    val_accuracy: float | None = None
    val_steps: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run: planned, begun or ended, by its name in the plan or of its folder.

    ``note``: of one that diverged or failed, what was seen. ``about``: versions, commit, machine
    and command, as recorded.
    """

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
    """Of one that counts: its validations with finite numbers, in order."""
    tokens_per_second: float | None = None
    """Median over the run, by wall time; None: not recorded."""
    solved: Solved | None = None
    """Of an ended run on a task: what it solves of the test set."""
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PaperNumber:
    """A number that the paper prints, and in which table, figure or section.

    ``quantity`` is a metric of rows that are of no single board. Shares are between 0 and 1.
    """

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
    """A figure of the paper, drawn of the result's own numbers beside the paper's."""

    kind: Literal["curves", "lines", "bars"]
    """"curves": validation losses of runs; "lines": rows at points; "bars": rows by arm, of the
    quantities that the paper prints."""
    up: str
    across: str = ""
    """What goes across; of curves "flops" or "tokens"."""
    points: tuple[Point, ...] = ()
    """Of lines: the rows that are drawn."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What was seen inside a model, in named panels: what routers read, or where words lie, and
    which word each point is (``labels``)."""

    kind: Literal["heatmap", "heads", "words"]
    """"heatmap": shares [layer, source layer]; "heads": shares [head, source layer] of each layer;
    "words": points [x, y] of each layer."""
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
    """What tempers the comparison with the paper; of a result also what is in no mean."""
    missing: str = ""
    """What cannot be evaluated here, and why."""


@dataclass(frozen=True, kw_only=True)
class StudyResult(OfPaper):
    """Everything that a study's page shows; of runs those too that are in no mean."""

    KIND: ClassVar[str] = "study"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem study"

    command: str
    name: str
    """The study; "report": runs that were named one by one."""
    title: str
    seeds: tuple[int, ...]
    boards: tuple[Board, ...]
    metrics: Mapping[str, Metric]
    runs: tuple[RunRecord, ...]
    rows: tuple[Row, ...] = ()
    """What was computed of them, or without any."""
    pictures: tuple[Picture, ...] = ()
    looks: Looks = ()
    """Seeds of each look at what is claimed, this one last; empty: the first look."""

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
            if run.state == "ended" and metric in run.metrics:
                values.setdefault(run.arm, {})[run.seed] = run.metrics[metric]
        return values

    def metrics_of(self, board: str, condition: str) -> list[str]:
        """Return the names of the metrics that runs have on a board under a condition."""
        runs = self.of(board, condition)
        return list(dict.fromkeys(name for run in runs for name in run.metrics))

    def computed(self, metric: str) -> dict[str, Mapping[int, float]]:
        """Return the values of a quantity that was computed of runs, by arm and seed."""
        return {row.arm: row.by_seed for row in self.rows if row.metric == metric}
