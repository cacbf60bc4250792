"""Activation checkpointing of an attached layer.

A checkpointed layer runs a second time in the backward, possibly in another thread and when its
forward is long over. So the slots that it reads go in as positional tensors, and its own comes out
as tensors, as autograd and both forms of checkpointing want them:

    checkpoint(layer, x, *slots of its sources) -> (x, *own slot)
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layermem.ops.route import Slot
from layermem.retrofit.slots import entered

if TYPE_CHECKING:
    from layermem.retrofit.attachment import Attachment


class CheckpointedLayer:
    """Takes the place of the checkpointing function that transformers gives a layer."""

    def __init__(
        self, attachment: "Attachment", layer: int, checkpoint: Callable[..., Any]
    ) -> None:
        self.attachment, self.layer, self.checkpoint = attachment, layer, checkpoint

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Checkpoint ``function(*args)``, the forward of the layer, and keep its slots."""
        forward = self.attachment.current(self.layer)
        history = [slot for lane in forward.lanes for slot in lane.history(self.layer)]
        run = _LayerRun(
            self.attachment, self.layer, function, len(args), defers=forward.lanes[0].defers
        )
        tensors = [tensor for slot in history for tensor in slot]
        outputs = self.checkpoint(run, *args, *tensors, *self._anchor((*args, *tensors)))
        own = outputs[run.n_outputs :]
        for lane, slot in zip(forward.lanes, _pair_up(own), strict=True):
            lane.keep(self.layer, slot)
        return outputs[: run.n_outputs] if run.is_tuple else outputs[0]

    def _anchor(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Return a tensor that needs a gradient if the layer's parameters do and no input does.

        Without one, re-entrant checkpointing would leave these parameters without gradients.
        """
        if not torch.is_grad_enabled() or any(
            isinstance(x, Tensor) and x.requires_grad for x in inputs
        ):
            return []
        layer = self.attachment.layers[self.layer]
        learns = any(parameter.requires_grad for parameter in layer.parameters())
        return [torch.empty(0, requires_grad=True)] if learns else []


class _LayerRun:
    """The function that is checkpointed: flat tensors in, flat tensors out."""

    def __init__(
        self,
        attachment: "Attachment",
        layer: int,
        function: Callable[..., Any],
        n_args: int,
        *,
        defers: bool,
    ) -> None:
        self.attachment, self.layer, self.function = attachment, layer, function
        self.n_args, self.defers = n_args, defers

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        forward = self.attachment.begin_layer(defers=self.defers)
        lanes = forward.lanes
        sources = self.attachment.sources[self.layer]
        slots = iter(_pair_up(inputs[self.n_args :][: 2 * len(sources) * len(lanes)]))
        for lane in lanes:
            lane.resume(self.layer, {j: next(slots) for j in sources})
        with entered(forward):
            output = self.function(*inputs[: self.n_args])
        self.is_tuple = isinstance(output, tuple)
        outputs = output if self.is_tuple else (output,)
        self.n_outputs = len(outputs)
        return (*outputs, *(tensor for lane in lanes for tensor in lane.last))


def _pair_up(tensors: Sequence[Tensor]) -> list[Slot]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))
