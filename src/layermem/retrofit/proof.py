"""Proof that the slices which a ``Host`` names are the keys and values of one head each.

The model runs a few times in evaluation mode on a few tokens, while its projections return random
numbers, the same in every row of the batch but for these changes, four rows for each head h:

    0, 1    values: all but those of h             1: the key of h changes, and nothing may follow
    2, 3    values: the last number of h alone     3: the first half of the key of h changes, and
                                                   the result must

A change is the opposite sign of the keys of all tokens but the last, which leaves norms over heads
as they are. It is looked for at the last token, so that a query is not taken for a key. The
identity that routers start as plays no part: any mapping to slices would pass with it.
"""

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from layermem.retrofit.attachment import Attachment

# Standard deviations of what projections return: queries, which are the model's, may be small.
_SCALES = (0.1, 0.5, 2.0, 8.0, 32.0)
# Effects below this many times the rounding of a result are none.
_ROUNDINGS = 8


def prove_slices(model: nn.Module, attachment: "Attachment") -> str | None:
    """Return None if the slices are proved, or why they cannot be; raise if they are disproved.

    The attachment is not installed yet. Weights, modes and random states are left as they are.
    """
    holders = (m for m in model.modules() if isinstance(m, PreTrainedModel))
    whole = next((m for m in holders if attachment.owner in m.modules()), None)
    if whole is None:
        return f"{type(model).__name__} is no model of transformers, which have inputs to try"
    shape, probe = attachment.shape, _Probe(attachment)
    try:
        with ExitStack() as stack, torch.no_grad():
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for module in whole.modules():
                stack.callback(setattr, module, "training", module.training)
            whole.eval()
            for attention in attachment.attentions:
                for lane, name in enumerate(attachment.host.projections):
                    projection, hook = attention.get_submodule(name), partial(probe.replace, lane)
                    stack.callback(projection.register_forward_hook(hook, prepend=True).remove)
                stack.callback(attention.register_forward_hook(probe.compare).remove)
            place = whole.get_input_embeddings().weight.device
            inputs = {
                # The first row of the model's dummy inputs, in every row.
                name: tensor[:1].expand(4 * shape.heads, *tensor.shape[1:]).to(place)
                for name, tensor in whole.dummy_inputs.items()
            }
            for probe.scale in _SCALES:
                whole(**inputs)
    except Exception as error:
        return f"a forward of {type(whole).__name__} failed ({type(error).__name__}: {error})"
    if len(probe.effects) < len(attachment.attentions):
        return "the model does not call all of its attentions"
    # By attention and head.
    size, others, own = torch.stack([*probe.effects.values()]).unbind(1)
    if not size.isfinite().all() or not size.any(1).all():
        return "what attention returns does not depend on values"
    if (others > 0).any() or (own <= 0).any():
        raise ValueError(
            f"{shape.heads} heads of width {shape.head_dim} in "
            f"{', '.join(attachment.host.projections)} are not what attention reads: the key of a "
            "head changes what values of other heads give, or not what its own give; correct "
            "Host(head_dim=..., layout=..., key=..., value=...)"
        )
    return None


class _Probe:
    """Changes what projections return, and keeps the largest effects, by attention and head."""

    def __init__(self, attachment: "Attachment") -> None:
        self.host, self.shape = attachment.host, attachment.shape
        self.scale = 1.0
        self.effects: dict[nn.Module, Tensor] = {}
        self.generator = torch.Generator().manual_seed(0)

    def replace(self, lane: int, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        """Return random numbers in place of what a projection returns."""
        heads, half = self.shape.heads, max(1, self.shape.head_dim // 2)
        if output.shape[0] != 4 * heads:
            # Embeddings of relative positions.
            return None
        drawn = self.scale * torch.randn(output.shape[1:], generator=self.generator)
        drawn = drawn.to(output).expand_as(output)
        parts = [part.clone() for part in self.shape.take_whole(drawn)]
        for h in range(heads):
            if self.host.fused or lane == 0:
                key = parts[0].unflatten(0, (heads, 4))[h]
                key[1, h, :-1] *= -1
                key[3, h, :-1, :half] *= -1
            if self.host.fused or lane == 1:
                value = parts[-1].unflatten(0, (heads, 4))[h]
                value[:2, h] = 0
                last = value[2, h, :, -1].clone()
                value[2:] = 0
                value[2:, h, :, -1] = last
        return self.shape.put_whole(drawn, parts)

    def compare(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Keep the effects on what an attention returns; go on with that of row 0 in every row."""
        first = output if isinstance(output, Tensor) else output[0]
        rows = first[:, -1].float().cpu().unflatten(0, (self.shape.heads, 4))
        rounding = _ROUNDINGS * torch.finfo(first.dtype).eps * rows.abs().amax(-1)
        effects = (rows[:, [1, 3]] - rows[:, [0, 2]]).abs().amax(-1) - rounding[:, [0, 2]]
        new = torch.stack([rows[:, 2].abs().amax(-1), *effects.unbind(1)])
        self.effects[module] = torch.maximum(self.effects.get(module, new), new)
        same = first[:1].expand_as(first)
        return same if first is output else (same, *output[1:])
