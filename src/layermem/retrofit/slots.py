"""The slots of a running forward, for hooks that belong to no call chain of ours.

``running`` finds the forward that the calling thread is in. Each thread has a stack of its own, and
a forward inside a forward is on top of it, so that nested and parallel forwards do not meet.

A checkpointed layer runs a second time in the backward, possibly in another thread and when its
forward is long over. So the slots that it reads go in as positional tensors, and its own comes out
as tensors, as autograd and both forms of checkpointing want them:

    checkpoint(layer, x, *slots of its sources) -> (x, *own slot)
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layermem.ops.route import Slot
from layermem.ops.shared_buffer import Shared, Slots

if TYPE_CHECKING:
    from layermem.retrofit.attachment import Attachment

Router = Callable[[Tensor, Sequence[Slot] | Slots], Slot]
BeginRoutes = Callable[[Tensor], Shared | None]


class SlotLane:
    """The slots of one forward that are routed together: keys, values, or both.

    ``sources[l]`` are the earlier layers that layer l reads, ``freed[l]`` those whose slots no
    layer after l reads. ``begin`` makes the routes by which layers share a buffer, if they may.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[int]],
        freed: Sequence[Sequence[int]],
        begin: BeginRoutes | None,
    ) -> None:
        self._sources, self._freed, self._begin = sources, freed, begin
        self._routes: Shared | None = None
        self._handed: tuple[Tensor, ...] = ()
        self.slots: dict[int, Slot] = {}
        # The slot of the last layer that ran, and the index of the next.
        self.last: Slot
        self.next_layer = 0

    def resume(self, layer: int, slots: dict[int, Slot]) -> None:
        """Begin at a layer, with the slots that it reads."""
        self.slots, self.next_layer = slots, layer

    def read(self, layer: int, own: Slot, router: Router | None) -> Slot | None:
        """Keep the slot of a layer and return what its router reads; None without a router."""
        if layer == 0 and self._begin is not None:
            self._routes = self._begin(own[0])
            self._handed = self._routes.handed if self._routes is not None else ()
        if self._routes is not None:
            buffered = self._routes.slots(layer, self._handed)
            buffered.append(*own)
            routed = router(own[0], buffered) if router is not None else None
            self._handed = buffered.handed
            self.next_layer += 1
            return routed
        earlier = self.history(layer)
        self.keep(layer, own)
        if router is None:
            return None
        # Layers of one model may lie on several devices.
        slots = [(key.to(own[0].device), value.to(own[0].device)) for key, value in earlier]
        return router(own[0], (*slots, own))

    def history(self, layer: int) -> list[Slot]:
        """Return the slots of the earlier layers that a layer reads."""
        return [self.slots[j] for j in self._sources[layer]]

    def keep(self, layer: int, own: Slot) -> None:
        """Keep the slot of a layer, and free those that no later layer reads."""
        self.slots[layer] = self.last = own
        self.next_layer += 1
        for j in self._freed[layer]:
            self.slots.pop(j, None)


class RunningForward:
    """One forward of a model, or the run of a single layer inside activation checkpointing."""

    def __init__(self, key: Any, lanes: Sequence[SlotLane]) -> None:
        self.key, self.lanes = key, lanes
        # What the projection to keys was last called with, to tell the tokens' from others.
        self.key_input: Tensor | None = None
        # The call that it is the forward of, when it is known.
        self.frame: FrameType | None = None

    def is_over(self) -> bool:
        """Whether its call has ended without a hook after it, as by an interrupt from a key."""
        if self.frame is None:
            return False
        try:
            self.frame.clear()
        except RuntimeError:
            # A frame that runs cannot be cleared.
            return False
        return True


class _Stacks(threading.local):
    def __init__(self) -> None:
        self.stack: list[RunningForward] = []


_stacks = _Stacks()


def running(key: Any) -> RunningForward | None:
    """Return the forward that this thread is in, None if there is none of ``key``'s model."""
    stack = _stacks.stack
    return stack[-1] if stack and stack[-1].key is key else None


def enter(forward: RunningForward, depth: int = 1) -> None:
    """Make a forward the one that this thread is in; it is the call ``depth`` frames above."""
    stack = _stacks.stack
    if not torch.compiler.is_compiling():
        while stack and stack[-1].is_over():
            stack.pop()
        forward.frame = sys._getframe(depth + 1)
    stack.append(forward)


def leave(key: Any) -> None:
    """End the forward of ``key``'s model that this thread is in, if there is one."""
    if running(key) is not None:
        _stacks.stack.pop()


@contextmanager
def entered(forward: RunningForward) -> Iterator[None]:
    """Make a forward the one that this thread is in, within the block."""
    stack = _stacks.stack
    stack.append(forward)
    try:
        yield
    finally:
        del stack[stack.index(forward) :]


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
        run = _LayerRun(self.attachment, self.layer, function, len(args))
        tensors = [tensor for slot in history for tensor in slot]
        outputs = self.checkpoint(run, *args, *tensors, *self._anchor((*args, *tensors)))
        own = outputs[run.n_outputs :]
        for lane, slot in zip(forward.lanes, _pairs(own), strict=True):
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
    ) -> None:
        self.attachment, self.layer, self.function = attachment, layer, function
        self.n_args = n_args

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        forward = self.attachment.begin_layer()
        lanes = forward.lanes
        sources = self.attachment.sources[self.layer]
        slots = iter(_pairs(inputs[self.n_args :][: 2 * len(sources) * len(lanes)]))
        for lane in lanes:
            lane.resume(self.layer, {j: next(slots) for j in sources})
        with entered(forward):
            output = self.function(*inputs[: self.n_args])
        self.is_tuple = isinstance(output, tuple)
        outputs = output if self.is_tuple else (output,)
        self.n_outputs = len(outputs)
        return (*outputs, *(tensor for lane in lanes for tensor in lane.last))


def _pairs(tensors: Sequence[Tensor]) -> list[Slot]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))
