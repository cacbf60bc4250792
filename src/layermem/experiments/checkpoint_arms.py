"""Arms of the checkpoints that a command was given: which of them differ in the seed alone.

It does not know: what is measured of them, tables.
"""

import logging
from collections.abc import Sequence

from layermem.experiments.analyze_checkpoints import Checkpoint
from layermem.results.arms import Arms
from layermem.study.run_folders import group_by_data, group_into_arms

logger = logging.getLogger(__name__)


def arms_of(checkpoints: Sequence[Checkpoint]) -> Arms:
    """Return the arms; none where a checkpoint is no run, or data or seeds of the runs differ."""
    runs = {
        each.name: (each.run, each.folder)
        for each in checkpoints
        if each.run is not None and each.folder is not None
    }
    if len(runs) < len(checkpoints) or len(runs) < 2 or len(group_by_data(runs)) > 1:
        return {}
    try:
        by_seed = group_into_arms(runs)
    except ValueError as error:
        # They can be compared one by one all the same.
        logger.warning("no means over seeds are shown: %s", error)
        return {}
    seeds = {arm: sorted(names) for arm, names in by_seed.items()}
    first = next(iter(seeds.values()))
    if any(others != first for others in seeds.values()):
        logger.warning(
            "no means over seeds are shown: the arms have different seeds (%s)",
            "; ".join(f"{arm} {', '.join(map(str, of_arm))}" for arm, of_arm in seeds.items()),
        )
        return {}
    return {arm: tuple(names[seed] for seed in first) for arm, names in by_seed.items()}
