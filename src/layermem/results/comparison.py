"""Recorded runs side by side: settings, their arms, learning rates that were tried.

    Comparison     one report
      runs           name -> RunRecord
      settings       runs that were trained and validated on the same data
        arms           runs that differ in the seed alone, by the name of what differs
      analyses       what layermem analyze wrote, where it was given
      costs          what layermem costs wrote, where it was given
      perplexities, minimal_pairs, evaluations
                     what layermem perplexity, blimp and eval wrote, where they were given

It does not know: how runs are told apart, tables, pages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from layermem.results.analysis import Analysis
from layermem.results.costs import CostPoint, Costs
from layermem.results.eval import EvalResult
from layermem.results.learning_rates import TriedRates
from layermem.results.minimal_pairs import MinimalPairsResult
from layermem.results.perplexity import PerplexityResult
from layermem.results.run_record import RunRecord


@dataclass(frozen=True, kw_only=True)
class SettingCosts:
    """What the arms of a setting cost, in closed form."""

    points: tuple[CostPoint, ...]
    """The arms at their own sizes, a point for each size."""
    layers: tuple[CostPoint, ...]
    """The arms of the first size at other depths."""
    width: tuple[CostPoint, ...]
    """The same at other widths."""
    measure_command: str | None = None
    """Command that measures the arms; None: their sizes are no preset's."""


@dataclass(frozen=True, kw_only=True)
class ComparisonSetting:
    """Runs that were trained and validated on the same data, grouped into arms."""

    presets: tuple[str, ...]
    """Presets the runs came from."""
    task: str | None
    """Name of the task; None: text."""
    trained_on: Mapping[str, Any]
    """The config's fields of the task or the data, and the data's digest where it is recorded."""
    arms: Mapping[str, tuple[str, ...]]
    """Name of each arm to the names of its runs, ordered by seed; the others are compared with the
    first."""
    costs: SettingCosts
    """What the arms cost."""
    looks: tuple[tuple[int, ...], ...] = ()
    """Seeds of each look at these runs, this one last; older records do not say."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything a report shows."""

    KIND: ClassVar[str] = "report"
    VERSION: ClassVar[int] = 2
    COMMAND: ClassVar[str] = "layermem report"

    command: str
    """What made it."""
    runs: Mapping[str, RunRecord]
    """What each run recorded, by its name."""
    settings: tuple[ComparisonSetting, ...]
    """Which runs are compared with which."""
    learning_rates: tuple[TriedRates, ...] = ()
    """Learning rates that were tried, where they were."""
    analyses: tuple[Analysis, ...] = ()
    """Analyses that were given."""
    costs: Costs | None = None
    """Costs that were given."""
    perplexities: tuple[PerplexityResult, ...] = ()
    """Perplexities on documents that were given."""
    minimal_pairs: tuple[MinimalPairsResult, ...] = ()
    """Judged pairs of grammar that were given."""
    evaluations: tuple[EvalResult, ...] = ()
    """Answers to evaluation tasks that were given."""
