"""Proof that the slices which a ``Host`` names are the keys and values of one head each.

The model runs a few times in evaluation mode on a few tokens. Its projections return random
numbers, the same in every row of the batch, with changes that differ by row. For each head h:

    h as drawn                        against row 0: the key of h must change something
    all values but those of h         the key of h must change nothing
    the last value of h alone         the first half of the key of h must change what it gives

A change is the opposite sign of the keys of all tokens but the last, which leaves norms over heads
as they are. It is looked for at the last token, so that a query is not taken for a key. The
identity that routers start as plays no part: any mapping to slices would pass with it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layermem.retrofit.hosts import Host, ProjectionShape

# By how much an effect that must be there exceeds one that must not, or rounding.
_CLEARLY = 8.0
# Standard deviations of what projections return: queries, which are the model's, may be small.
_SCALES = (0.1, 0.5, 2.0, 8.0, 32.0)


class Disproved(ValueError):
    """The slices are not those of heads."""


def prove_slices(
    model: nn.Module,
    owner: nn.Module,
    host: Host,
    attentions: Sequence[nn.Module],
    shape: ProjectionShape,
) -> str | None:
    """Return None if the slices are proved, or why they cannot be; raise if they are disproved.

    Weights, modes and random states are left as they are.
    """
    whole = next(
        (m for m in model.modules() if isinstance(m, PreTrainedModel) and owner in m.modules()),
        None,
    )
    if whole is None:
        return f"{type(model).__name__} is no model of transformers, which have inputs to try"
    probe = _Probe(host, shape)
    try:
        with ExitStack() as stack, torch.no_grad():
            stack.enter_context(_in_evaluation_mode(whole))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for attention in attentions:
                for remove in probe.install(attention):
                    stack.callback(remove)
            for probe.scale in _SCALES:
                whole(**_inputs(whole, probe.rows))
    except Exception as error:
        return f"a forward of {type(whole).__name__} failed ({type(error).__name__}: {error})"
    return next(filter(None, map(probe.judge, attentions)), None)


class _Probe:
    """The changes by row, and the largest effects that were seen, by attention and head."""

    def __init__(self, host: Host, shape: ProjectionShape) -> None:
        self.host, self.shape = host, shape
        self.rows = 1 + 5 * shape.heads
        self.scale = 1.0
        self.effects: dict[nn.Module, list[Tensor]] = {}
        self.generator = torch.Generator().manual_seed(0)

    def install(self, attention: nn.Module) -> Iterator[Callable[[], None]]:
        """Put hooks on an attention and its projections; yield what removes them."""
        for lane, name in enumerate(self.host.projections):
            hook = self._replace_projected(lane)
            yield attention.get_submodule(name).register_forward_hook(hook, prepend=True).remove
        yield attention.register_forward_hook(self._compare_rows).remove

    def _replace_projected(self, lane: int) -> Callable[..., Tensor | None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            if output.shape[0] != self.rows:
                # Embeddings of relative positions.
                return None
            drawn = self.scale * torch.randn(output.shape[1:], generator=self.generator)
            drawn = drawn.to(output).expand_as(output)
            parts = [part.clone() for part in self.shape.take_whole(drawn)]
            if self.host.fused or lane == 0:
                self._change_keys(parts[0])
            if self.host.fused or lane == 1:
                self._change_values(parts[-1])
            return self.shape.put_whole(drawn, parts)

        return hook

    def _change_keys(self, key: Tensor) -> None:
        half = max(1, self.shape.head_dim // 2)
        for h in range(self.shape.heads):
            changed, _, changed_alone, _, half_changed = self._rows_of(h)
            key[[changed, changed_alone], h, :-1] *= -1
            key[half_changed, h, :-1, :half] *= -1

    def _change_values(self, value: Tensor) -> None:
        for h in range(self.shape.heads):
            _, without, without_too, last, last_too = self._rows_of(h)
            value[[without, without_too], h] = 0
            kept = value[last, h, :, -1].clone()
            value[[last, last_too]] = 0
            value[[last, last_too], h, :, -1] = kept

    def _rows_of(self, head: int) -> list[int]:
        return [1 + head + i * self.shape.heads for i in range(5)]

    def _compare_rows(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Keep the effects on what an attention returns; go on with that of row 0 in every row."""
        first = output if isinstance(output, Tensor) else output[0]
        plain, *rows = first[:, -1].float().cpu().split([1, *[self.shape.heads] * 5])
        changed, without, without_too, last, last_too = rows
        effects = [without - plain, changed - plain, without_too - without, last_too - last]
        rounding = torch.finfo(first.dtype).eps * last.abs().amax(-1)
        values, keys, others, own = (effect.abs().amax(-1) for effect in effects)
        new = [values, keys, others, own - _CLEARLY * rounding]
        before = self.effects.get(module, new)
        self.effects[module] = [torch.maximum(a, b) for a, b in zip(before, new, strict=True)]
        same = first[:1].expand_as(first)
        return same if first is output else (same, *output[1:])

    def judge(self, attention: nn.Module) -> str | None:
        """Return None if an attention uses the slices, or why this cannot be seen."""
        if attention not in self.effects:
            return f"{type(attention).__name__} was not called"
        values, keys, others, own = self.effects[attention]
        if not values.isfinite().all() or not values.any():
            return f"what {type(attention).__name__} returns does not depend on values"
        if (others * _CLEARLY >= keys).any() or (own <= 0).any():
            raise Disproved(
                f"{self.shape.heads} heads of width {self.shape.head_dim} in "
                f"{', '.join(self.host.projections)} are not what attention reads: the key of a "
                "head changes what values of other heads give, or not what its own give; correct "
                "Host(head_dim=..., layout=..., key=..., value=...)"
            )
        return None


def _inputs(model: PreTrainedModel, rows: int) -> dict[str, Tensor]:
    """Return what a model is called with: the first row of its dummy inputs, in every row."""
    place = model.get_input_embeddings().weight.device
    return {
        name: tensor[:1].expand(rows, *tensor.shape[1:]).to(place)
        for name, tensor in model.dummy_inputs.items()
    }


@contextmanager
def _in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
