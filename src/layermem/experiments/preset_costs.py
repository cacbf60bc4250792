"""What each preset costs in closed form, as the plain decoder: parameters, tokens and FLOPs.

It imports neither torch nor transformers, so that presets are listed at once.
"""

from dataclasses import dataclass

from layermem import presets
from layermem.config import Run
from layermem.counting import plain_sizes
from layermem.efficiency.costs import cost
from layermem.efficiency.model_sizes import model_sizes


@dataclass(frozen=True, kw_only=True)
class PresetCost:
    """The closed-form costs of a preset, as the plain decoder."""

    name: str
    """The preset."""
    run: Run
    """Its run."""
    mean_tokens: float
    """Mean tokens of a sequence."""
    parameters: int
    """Trainable parameters."""
    flops_per_token: float
    """FLOPs of a training step for one token."""

    @property
    def sequences(self) -> int:
        """Sequences of the whole run."""
        return self.run.max_steps * self.run.optim.batch_size

    @property
    def sequence_tokens(self) -> int:
        """Tokens of a sequence, for what needs a whole number of them."""
        return round(self.mean_tokens)

    @property
    def tokens(self) -> int:
        """Tokens of the whole run."""
        return round(self.sequences * self.mean_tokens)

    @property
    def flops(self) -> float:
        """FLOPs of the whole run."""
        return self.tokens * self.flops_per_token


def preset_costs() -> list[PresetCost]:
    """Return what every preset costs, in the order of the presets."""
    return [_preset_cost(name) for name in presets.names()]


def _preset_cost(name: str) -> PresetCost:
    run = presets.get_preset(name)
    fields, length = model_sizes(run)
    tokens = round(length)
    step = cost(plain_sizes(fields), None, tokens)
    return PresetCost(
        name=name,
        run=run,
        mean_tokens=length,
        parameters=step.parameters,
        flops_per_token=step.training / tokens,
    )
