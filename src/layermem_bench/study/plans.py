"""What it would take to train the arms of a preset on some devices, and what would make it fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layermem_bench import presets
from layermem_bench.config.named_options import parse_options
from layermem_bench.efficiency.plans import Cluster, Plan, mends, plan_run
from layermem_bench.study.boards import parse_arms

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
    planned = {}
    for arm, (variant, options) in parse_arms(variants).items():
        run = replace(base, variant=variant)
        fields = {**base.model.variant_fields(), **parse_options(options)}
        plan = plan_run(run, fields, cluster)
        found = [] if plan.fits else list(mends(plan, fields))[:_MOST_MENDS]
        planned[arm] = PlannedArm(plan=plan, mends=found)
    return planned
