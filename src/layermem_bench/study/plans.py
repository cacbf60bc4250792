"""What it would take to train the arms of a preset on some devices, and what would make it fit."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layermem_bench import presets
from layermem_bench.config.named_options import parse_options
from layermem_bench.efficiency.plans import Cluster, Plan, mends, plan_run
from layermem_bench.study.boards import parse_arms

logger = logging.getLogger(__name__)
# Of the changes that make a run fit, those that are named.
_MOST_MENDS = 3


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    """One arm's plan, and changes with which it fits if it does not."""

    plan: Plan
    mends: Sequence[tuple[str, Plan]]
    """Options, and the plan with them."""


def plan_arms(
    preset: str, variants: str, cluster: Cluster, changes: Mapping[str, Any]
) -> dict[str, PlannedArm]:
    """Return the plan of each arm; ``changes`` are fields of ``config.Compute``."""
    base = presets.get_preset(preset)
    base = replace(base, compute=replace(base.compute, **changes))
    planned: dict[str, PlannedArm] = {}
    arms = parse_arms(variants)
    for arm, (variant, options) in arms.items():
        run = replace(base, variant=variant)
        fields = {**base.model.variant_fields(), **parse_options(options)}
        try:
            plan = plan_run(run, fields, cluster)
        except ValueError as error:
            if not planned and arm == [*arms][-1]:
                raise
            logger.warning("%s is left out: %s", arm, error)
            continue
        found = [] if plan.fits else list(mends(plan, fields))[:_MOST_MENDS]
        planned[arm] = PlannedArm(plan=plan, mends=found)
    return planned
