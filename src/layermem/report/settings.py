"""Settings of a report: which runs are compared with which, and what of them counts.

A run that diverged is in no mean, and is never left out without a word: a mean over the seeds that
happened to live would be a mean over other seeds than the others'.

It does not know: torch, pages, figures.
"""

from collections.abc import Mapping
from typing import Any

from layermem.intervals import Interval, paired

Found = Mapping[str, Any]


class Setting:
    """One setting with its runs: what has ended counts, what diverged is told, the rest is said."""

    def __init__(self, setting: Found, name: str, runs: Found) -> None:
        self.name = name
        self.costs = setting["costs"]
        self.arms: dict[str, dict[int, Found]] = {
            arm: {runs[name]["seed"]: {"name": name, **runs[name]} for name in names}
            for arm, names in setting["arms"].items()
        }
        self.ended = {
            arm: {seed: run for seed, run in by.items() if run["ended"] and run["measures"]}
            for arm, by in self.arms.items()
        }
        self.diverged = {
            arm: {seed: run for seed, run in by.items() if run["diverged"]}
            for arm, by in self.arms.items()
        }

    @property
    def styles(self) -> dict[str, int]:
        """Return arm to the style of its lines."""
        return {arm: i for i, arm in enumerate(self.arms)}

    @property
    def measures(self) -> dict[str, bool]:
        """Name of each measure that ended runs have, to whether it is a share.

        Where runs diverged there is a loss, if only to say so.
        """
        return ({"validation loss": False} if any(self.diverged.values()) else {}) | {
            name: measure["is_share"]
            for by in self.ended.values()
            for run in by.values()
            for name, measure in run["measures"].items()
        }

    def values(self, arm: str, measure: str) -> dict[int, float]:
        """Return seed to value."""
        return {
            seed: run["measures"][measure]["value"]
            for seed, run in self.ended[arm].items()
            if measure in run["measures"]
        }

    def over(self, arm: str, measure: str) -> int:
        """Return how many seeds there would be, had none diverged."""
        return len(self.values(arm, measure)) + len(self.diverged[arm])

    def diverging(self, arm: str, measure: str) -> str:
        """Say how many seeds diverged; nothing where none did."""
        lost = len(self.diverged[arm])
        return f"diverged in {lost} of {self.over(arm, measure)} seeds" if lost else ""

    def gap(self, arm: str, measure: str) -> Interval | None:
        """Return the difference to the first arm over the seeds both have; None: there is none."""
        first = next(iter(self.arms))
        ours, theirs = self.values(arm, measure), self.values(first, measure)
        common = [seed for seed in ours if seed in theirs]
        if arm == first or not common:
            return None
        return paired([ours[seed] for seed in common], [theirs[seed] for seed in common])

    def left_out(self) -> dict[str, list[Found]]:
        """Return arm to the runs that neither count nor diverged."""
        found = {
            arm: [
                run
                for seed, run in by.items()
                if seed not in self.ended[arm] and seed not in self.diverged[arm]
            ]
            for arm, by in self.arms.items()
        }
        return {arm: runs for arm, runs in found.items() if runs}


def settings_of(found: Found) -> list["Setting"]:
    """Return the settings, called after what they learnt; what differs is added where that is
    alike."""
    settings = found["settings"]
    names = [_learnt(setting) for setting in settings]
    made = []
    for setting, name in zip(settings, names, strict=True):
        alike = [s["learnt"] for s, other in zip(settings, names, strict=True) if other == name]
        differing = [
            f"{key}={value}"
            for key, value in setting["learnt"].items()
            if any(other.get(key) != value for other in alike)
        ]
        full = f"{name[:-1]}, {' '.join(differing)})" if differing else name
        made.append(Setting(setting, full, found["runs"]))
    return made


def _learnt(setting: Found) -> str:
    learnt = setting["learnt"]
    options = " ".join([setting["task"], *learnt["options"]]) if setting["task"] else ""
    return f"{', '.join(setting['presets'])} ({options or learnt['source']})"
