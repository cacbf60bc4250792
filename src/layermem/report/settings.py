"""Settings of a report: which runs are compared with which, and which of them count.

A run that diverged is in no mean, and is never left out without a word: a mean over the seeds that
did not diverge would be a mean over other seeds than the other arms'.

It does not know: torch, pages, figures.
"""

from layermem.intervals import Interval, adjusted_p_values, paired_by_seed
from layermem.results.comparison import Comparison, ComparisonSetting
from layermem.results.run_record import LOSS, RunRecord


class Setting:
    """One setting with its runs, by arm and seed: all, those that ended, those that diverged."""

    def __init__(self, setting: ComparisonSetting, name: str, comparison: Comparison) -> None:
        self.name = name
        self.costs = setting.costs
        self.looks = setting.looks
        self.arms: dict[str, dict[int, RunRecord]] = {
            arm: {comparison.runs[run].seed: comparison.runs[run] for run in runs}
            for arm, runs in setting.arms.items()
        }
        self.ended = {
            arm: {seed: run for seed, run in runs.items() if run.ended and run.metrics}
            for arm, runs in self.arms.items()
        }
        self.diverged = {
            arm: {seed: run for seed, run in runs.items() if run.diverged}
            for arm, runs in self.arms.items()
        }

    @property
    def first(self) -> str:
        """Return the arm that the others are compared with."""
        return next(iter(self.arms))

    @property
    def styles(self) -> dict[str, int]:
        """Return arm to the style of its lines."""
        return {arm: i for i, arm in enumerate(self.arms)}

    @property
    def metrics(self) -> dict[str, bool]:
        """Return the name of each metric that ended runs have, to whether it is a share.

        Where runs diverged there is a loss, if only to say so.
        """
        return ({LOSS: False} if any(self.diverged.values()) else {}) | {
            name: metric.is_share
            for runs in self.ended.values()
            for run in runs.values()
            for name, metric in run.metrics.items()
        }

    def values(self, arm: str, metric: str) -> dict[int, float]:
        """Return seed to value."""
        return {
            seed: run.metrics[metric].value
            for seed, run in self.ended[arm].items()
            if metric in run.metrics
        }

    def seed_count(self, arm: str, metric: str) -> int:
        """Return how many seeds there would be, had none diverged."""
        return len(self.values(arm, metric)) + len(self.diverged[arm])

    def divergence_note(self, arm: str, metric: str) -> str:
        """Say how many seeds diverged; nothing where none did."""
        count = len(self.diverged[arm])
        return f"diverged in {count} of {self.seed_count(arm, metric)} seeds" if count else ""

    def difference(self, arm: str, metric: str) -> Interval | None:
        """Return the difference to the first arm over the seeds both have; None: there is none."""
        if arm == self.first:
            return None
        return paired_by_seed(self.values(arm, metric), self.values(self.first, metric))

    def adjusted_p_values(self, metric: str) -> dict[str, float]:
        """Return the p-value of each arm's difference, adjusted by Holm's method for their number.

        And for the looks at the runs. Arms with fewer than two pairs of seeds have none.
        """
        differences = {arm: self.difference(arm, metric) for arm in self.arms}
        return adjusted_p_values(differences, max(1, len(self.looks)))

    def left_out(self) -> list[RunRecord]:
        """Return the runs that neither count nor diverged."""
        return [
            run
            for arm, runs in self.arms.items()
            for seed, run in runs.items()
            if seed not in self.ended[arm] and seed not in self.diverged[arm]
        ]


def settings_of(comparison: Comparison) -> list[Setting]:
    """Return the settings, named after their data, longer where two names would be the same."""
    settings = comparison.settings
    names = [_data_name(setting) for setting in settings]
    named = []
    for setting, name in zip(settings, names, strict=True):
        same_name = [
            other.trained_on
            for other, other_name in zip(settings, names, strict=True)
            if other_name == name
        ]
        differing = [
            f"{key}={value}"
            for key, value in setting.trained_on.items()
            if any(other.get(key) != value for other in same_name)
        ]
        longer = f"{name[:-1]}, {' '.join(differing)})" if differing else name
        named.append(Setting(setting, longer, comparison))
    return named


def _data_name(setting: ComparisonSetting) -> str:
    fields = setting.trained_on
    options = " ".join([setting.task, *fields["options"]]) if setting.task else ""
    return f"{', '.join(setting.presets)} ({options or fields['source']})"
