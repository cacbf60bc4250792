"""What is compared, as data: Study, its Boards, their Arms; and the studies known by name.

``@study`` makes a study known by the name of the function that returns it, with dashes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from layermem_base.number_ranges import above, at_least, check_numbers, number
from layermem_bench.config.named import Named
from layermem_bench.config.run import Run
from layermem_bench.results.study import LOSS, RIGHT_ANSWERS, OfPaper, Picture, RunRecord

CHOOSING_SEED = 1000
"""Seed that learning rates are chosen with; results must be of other seeds."""
ALL_CONDITIONS = ("tokens", "time", "parameters")


def with_learning_rate(run: Run, rate: float) -> Run:
    """Return a run at another learning rate."""
    return replace(run, optim=replace(run.optim, lr=rate))


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the alternatives that are compared on a board."""

    name: str
    change: Callable[[Run], Run]
    """Returns the board's run with what this arm changes."""
    rates: tuple[float, ...] | None = number(None, above(0))
    """Learning rates that it tries; None: the board's."""
    with_rate: Callable[[Run, float], Run] = with_learning_rate
    """Puts a learning rate into its run."""
    has_own_rate: bool = False
    """Whether it adds parameters to the plain decoder, whose learning rate trials try too."""
    note: str = ""

    def __post_init__(self) -> None:
        check_numbers(self, f"{self.name}: ")


@dataclass(frozen=True, kw_only=True)
class Board:
    """What the runs of some arms share, and the arms: the others are compared with the first."""

    name: str
    base: Run
    arms: tuple[Arm, ...]
    rates: tuple[float, ...] = number((), above(0))
    """Learning rates that every arm tries on a seed kept for that; empty: the base's."""
    decays: tuple[float, ...] = number((), at_least(0))
    """Weight decays that are tried with every rate; empty: the base's."""
    trials: int | None = number(None, at_least(2))
    """How many settings every arm tries between the lowest and the highest of ``rates``; None: each
    of these, with each of the decays."""
    own_rates: tuple[float, float] = number((1e-3, 3e-2), above(0))
    """Lowest and highest learning rate that trials try for parameters that an arm adds."""
    starts_from: "Board | None" = None
    """Board whose run of the same arm and seed each run starts from; None: new weights."""
    shape: str = ""
    """LAYERSxWIDTH, where it is a preset in another shape."""
    prepare: Callable[[], None] | None = None
    """Makes what its runs need, and raises early where something that they need is missing."""

    def __post_init__(self) -> None:
        check_numbers(self)
        names = [arm.name for arm in self.arms]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{self.name}: arms must be given and differ, got {', '.join(names)}")
        rates = [("learning rates", self.rates_of(arm)) for arm in self.arms]
        for what, tried in (*rates, ("weight decays", self.decays)):
            if len({f"{value:g}" for value in tried}) < len(tried):
                shown = ", ".join(map(repr, tried))
                raise ValueError(f"{what} must differ in six digits, got {shown}")
        if self.trials is not None:
            self._check_trials()
        elif self.own_rates != Board.own_rates:
            low, high = self.own_rates
            raise ValueError(
                f"--own-rates {low:g} {high:g} are tried in --trials: say how many trials each arm "
                "has, or leave --own-rates out"
            )
        if self.decays and not any(map(self.rates_of, self.arms)):
            raise ValueError("weight decays are tried with learning rates: name some (--rates)")

    def _check_trials(self) -> None:
        low, high = self.own_rates
        if low >= high:
            raise ValueError(f"--own-rates must be lowest and highest, got {low:g} {high:g}")
        if self.decays:
            raise ValueError("--trials tries learning rates alone: leave --decays out")
        if any(len(self.rates_of(arm)) < 2 for arm in self.arms):
            raise ValueError(
                "--trials needs the lowest and the highest of --rates to try; for one rate that "
                "all arms take, leave them out (--trials None)"
            )
        ranges = {"--rates": self.rates, "--own-rates": self.own_rates}
        count = self.trials or 0
        for option, rates in ranges.items() if count > 1 else ():
            if rates and len(set(spaced_rates(min(rates), max(rates), count))) < count:
                raise ValueError(
                    f"--trials {count} between {min(rates):g} and {max(rates):g} has equal "
                    f"rates after rounding to two digits: fewer --trials, or wider {option}"
                )
        if self.base.optim.router_lr is not None:
            raise ValueError("--trials tries rates of its own: leave --optim.router-lr out")

    def rates_of(self, arm: Arm) -> tuple[float, ...]:
        """Return the learning rates that an arm tries."""
        return self.rates if arm.rates is None else arm.rates

    @property
    def metric(self) -> str:
        """Return what arms are ranked by."""
        return RIGHT_ANSWERS if self.base.task.name else LOSS


def spaced_rates(low: float, high: float, count: int) -> list[float]:
    """Return rates of two digits from the lowest to the highest, with equal ratios."""
    ratio = (high / low) ** (1 / (count - 1))
    return [float(f"{low * ratio**i:.2g}") for i in range(count)]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One quantity of one arm, as a ``Row`` and a ``Metric`` of a result hold it."""

    quantity: str
    arm: str
    by_seed: Mapping[int, float]
    is_share: bool = False
    chance: float | None = None
    counted: bool = False


Records = Mapping[str, Mapping[str, Mapping[int, RunRecord]]]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The ended runs of a study, of its first condition, by board, arm and planned seed."""

    seeds: tuple[int, ...]
    records: Records
    out: Path
    """Folder for what is computed of them."""


@dataclass(frozen=True, kw_only=True)
class Study(OfPaper):
    """Arms on boards, seed by seed, under conditions."""

    name: str
    title: str
    boards: tuple[Board, ...]
    seeds: tuple[int, ...]
    conditions: tuple[str, ...] = ("tokens",)
    """Under which the arms meet: of ``ALL_CONDITIONS``."""
    observe: Callable[[Trained], Iterable[Observed | Picture]] | None = None
    """What is seen of ended runs, or without any; None: what runs are judged by is all."""
    tasks: tuple[str, ...] = ()
    """Evaluation tasks that models are asked, for which no time is estimated."""

    def __post_init__(self) -> None:
        if CHOOSING_SEED in self.seeds:
            raise ValueError(
                f"seed {CHOOSING_SEED} is kept for choosing learning rates; choose other --seeds"
            )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"a study needs different seeds, got {self.seeds or 'none'}")
        if not self.conditions or not set(self.conditions) <= set(ALL_CONDITIONS):
            raise ValueError(
                f"--conditions must be of {', '.join(ALL_CONDITIONS)}, got "
                f"{', '.join(self.conditions) or 'none'}"
            )
        names = [board.name for board in self.boards]
        if len(set(names)) < len(names):
            raise ValueError(f"two boards of a study have one name: {', '.join(names)}")


_KNOWN = Named[Study]("study")
study, names, description, get_study = _KNOWN.add, _KNOWN.names, _KNOWN.description, _KNOWN.make
"""Makes a function a study; names of all such studies; a study's one line; the study of a name."""
