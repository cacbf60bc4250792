"""What the arms of recorded runs cost in closed form: at their sizes, and along depth and width."""

import json
from collections.abc import Mapping
from typing import Any

from layermem import presets
from layermem.config import Run
from layermem.efficiency.measuring import ModelSpec
from layermem.efficiency.model_sizes import SIZES, model_sizes, resized, saved_sizes
from layermem.results.costs import CostPoint
from layermem.results.study import SettingCosts
from layermem.runs import RunFolder
from layermem.study.cost_points import count_point
from layermem.study.records import naming_damage

_DEPTHS = (4, 8, 16, 32, 64, 128)
_WIDTH_FACTORS = (1, 2, 4, 8)


def costs_of_arms(arms: Mapping[str, tuple[Run, RunFolder]]) -> SettingCosts:
    """Return closed-form costs of the arms at their sizes, and of the first size's at others.

    There are none of models of transformers, nor of arms that have not trained a step: their
    options may be such as no model can have.
    """
    arms = {arm: (run, folder) for arm, (run, folder) in arms.items() if folder.rows()}
    if not arms or any(run.host.model is not None for run, _ in arms.values()):
        # Closed forms are of our own decoder.
        return SettingCosts()
    models: dict[str, ModelSpec] = {}
    arms_by_size: dict[tuple[Any, ...], list[str]] = {}
    for arm, (run, folder) in arms.items():
        with naming_damage(folder):
            fields = _model_fields(run, folder)
        models[arm] = run.variant, fields
        arms_by_size.setdefault(tuple(fields[name] for name in SIZES), []).append(arm)
    tokens = _tokens_of_a_sequence(*next(iter(arms.values())))

    def point(
        names: list[str], layers: int | None = None, width: int | None = None
    ) -> CostPoint | None:
        """Count these arms at another size; None: none of them exists there."""
        at_size = {
            arm: (models[arm][0], resized(models[arm][1], layers, width))
            for arm in names
            # Chosen for each layer: there is no saying what it would be at another depth.
            if layers is None or models[arm][1].get("router_sources") is None
        }
        return count_point(arms[names[0]][0].preset, at_size, tokens) if at_size else None

    points = [point(names) for names in arms_by_size.values()]
    first = next(iter(arms_by_size.values()))
    width = models[first[0]][1]["hidden_size"]
    by_depth = [point(first, layers=depth) for depth in _DEPTHS]
    by_width = [point(first, width=factor * width) for factor in _WIDTH_FACTORS]
    return SettingCosts(
        points=tuple(filter(None, points)),
        layers=tuple(filter(None, by_depth)),
        width=tuple(filter(None, by_width)),
        measure_command=_measure_command(arms),
    )


def _measure_command(arms: Mapping[str, tuple[Run, RunFolder]]) -> str | None:
    """Return the command that measures the arms; None: their sizes are no preset's."""
    runs = [run for run, _ in arms.values()]
    preset = runs[0].preset
    if preset not in presets.names() or any(
        run.model.sizes() != presets.get_preset(preset).model.sizes() for run in runs
    ):
        return None
    variants = ",".join(dict.fromkeys(":".join((r.variant, *r.model.options)) for r in runs))
    return f"layermem costs {preset} --variants {variants} --measure --out costs.json"


def _model_fields(run: Run, folder: RunFolder) -> dict[str, Any]:
    """Return the config fields of a run's model."""
    fields, _ = model_sizes(run)
    saved = folder.final / "config.json"
    if saved.exists():
        # What it started from, or its tokenizer, may have decided the sizes.
        config = json.loads(saved.read_text(encoding="utf-8"))
        fields |= saved_sizes(run.variant, fields, config)
    fields["num_key_value_heads"] = fields["num_key_value_heads"] or fields["num_attention_heads"]
    return fields | run.model.variant_fields()


def _tokens_of_a_sequence(run: Run, folder: RunFolder) -> int:
    """Return the mean tokens of a sequence: as recorded, else as the data is prepared."""
    last = folder.last_row()
    if last.get("step") and last.get("tokens"):
        return max(1, round(last["tokens"] / last["step"] / run.optim.batch_size))
    return round(model_sizes(run)[1])
