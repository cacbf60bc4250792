"""Write the tables of docs/scale.md that are counted in closed form: python THIS_FILE."""

import re
from functools import cache
from pathlib import Path

from layermem_bench.config.devices import get_device
from layermem_bench.costs.closed_forms import cost
from layermem_bench.costs.plan import Plan
from layermem_bench.pages.numbers import format_duration, in_bytes
from layermem_bench.studies.costs import plan_arms

PAGE = Path(__file__).parent / "scale.md"
DEVICE, GPUS, UTILISATION = get_device("h100"), 64, 0.4
ARMS = "plain,lime,value_residual,recipe+mudd"
# Tables 8 and 9 of the paper: billions of parameters, TFLOPs of a forward, GB of a step in graphs.
PAPER = {
    ("paper-1b-gqa", "plain"): (1.07607, 2.7615, 16.035),
    ("paper-1b-gqa", "lime"): (1.07608, 2.7638, 16.035),
    ("paper-1b-full", "plain"): (1.17674, 2.9679, 17.535),
    ("paper-1b-full", "lime"): (1.17687, 3.0041, 17.537),
}
PRESETS = ("paper-1b-gqa", "paper-1b-full", "paper-150m", "paper-depth-128")


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for table in (paper_table(), plans_table()):
        text = replace_table(text, table)
    PAGE.write_text(text, encoding="utf-8")


def paper_table() -> str:
    """Return what the paper prints of its 1B, beside the closed forms."""
    head = ["the paper's 1B", "parameters", "paper", "TFLOPs of a forward", "paper"]
    rows = [[*head, "weights, gradients, AdamW", "paper's peak, in graphs"]]
    for (preset, arm), (parameters, flops, peak) in PAPER.items():
        plan = _plans(preset)[arm]
        held = sum(plan.memory[name] for name in ("weights", "gradients", "optimiser"))
        rows.append(
            [
                f"{preset}, {arm}",
                f"{plan.parameters / 1e9:.5f} B",
                f"{parameters:.5f} B",
                f"{_paper_flops(preset, arm) / 1e12:.4f}",
                f"{flops:.4f}",
                f"{held / 2**30:.3f} GiB",
                f"{peak:.3f} GB",
            ]
        )
    return _markdown(rows)


def plans_table() -> str:
    """Return what runs of the paper's presets would take on 64 H100s."""
    rows = [["on 64 H100s", "memory of a GPU", "of it slots", "step", "time", "GPU-hours"]]
    for preset in PRESETS:
        for arm, plan in _plans(preset).items():
            step = max(plan.arithmetic, plan.network)
            rows.append(
                [
                    f"{preset}, {arm}",
                    in_bytes(sum(plan.memory.values())),
                    in_bytes(plan.memory["slots"]),
                    f"{step:.3f} s",
                    format_duration(plan.seconds),
                    f"{GPUS * plan.seconds / 3600:,.0f}",
                ]
            )
    return _markdown(rows)


@cache
def _plans(preset: str) -> dict[str, Plan]:
    return plan_arms(preset, ARMS, DEVICE, GPUS, UTILISATION, {})


def _paper_flops(preset: str, arm: str) -> float:
    from layermem.models.registry import lookup
    from layermem_bench.costs.model_sizes import model_sizes
    from layermem_bench.presets import get_preset

    entry = lookup(arm)
    fields, length = model_sizes(get_preset(preset))
    return cost(entry.config(**fields), entry.variant, round(length), "paper").forward


def _markdown(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def replace_table(text: str, table: str) -> str:
    """Return the text with ``table`` in the place of the one that begins with the same cell."""
    start = table[: table.index(" |", 2) + 2]
    page, count = re.subn(rf"(?m)^{re.escape(start)}.*\n(\|.*\n)*", lambda _: f"{table}\n", text)
    if count != 1:
        raise SystemExit(f"{PAGE} must have one table that begins with {start!r}, got {count}")
    return page


if __name__ == "__main__":
    main()
