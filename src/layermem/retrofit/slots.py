"""The slots of a running forward, for hooks that belong to no call chain of ours.

What is routed together, keys, values or both, has a lane. It hands tensors from layer to layer:
what layers share a buffer by (``ops.shared_buffer``), or else the slots of all layers so far.

A checkpointed layer runs a second time in the backward, possibly in another thread and when its
forward is long over. So what it is handed goes in as positional tensors, and what it hands on comes
out, as autograd and both forms of checkpointing want them:

    checkpoint(layer, x, *handed) -> (x, *handed on)
"""

import threading
from collections.abc import Callable, Sequence
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import Tensor

from layermem.ops.route import Slot
from layermem.ops.shared_buffer import Shared, Slots

if TYPE_CHECKING:
    from layermem.retrofit.attachment import Attachment

Router = Callable[[Tensor, Sequence[Slot] | Slots], Slot]


class Lane:
    """What is routed together in one forward: keys, values, or both.

    ``sources[l]`` are the earlier layers that layer l reads. ``begin`` makes what layers share a
    buffer by, if they may, from a tensor of the forward.
    """

    def __init__(
        self, sources: Sequence[Sequence[int]], begin: Callable[[Tensor], Shared | None]
    ) -> None:
        self.sources, self._begin = sources, begin
        self._is_begun = False
        self._shared: Shared | None = None
        # What the next layer is handed, and its index.
        self.handed: tuple[Tensor, ...] = ()
        self.next_layer = 0

    def begin(self, like: Tensor) -> None:
        """Begin with layer 0, unless it has begun."""
        if not self._is_begun:
            self._is_begun, self._shared = True, self._begin(like)
            self.handed = self._shared.handed if self._shared is not None else ()

    def at(self, layer: int, handed: tuple[Tensor, ...] = ()) -> "Lane":
        """Return this lane as it is when a layer is handed its tensors."""
        lane = copy(self)
        lane.next_layer, lane.handed = layer, handed
        return lane

    def handed_to(self, layer: int) -> int:
        """Return how many tensors a layer is handed."""
        return 2 * layer if self._shared is None else self._shared.handed_to(layer)

    def handed_by(self, layer: int) -> int:
        """Return how many tensors a layer hands on."""
        return 2 * (layer + 1) if self._shared is None else self._shared.handed_by(layer)

    def read(self, own: Slot, router: Router | None) -> Slot | None:
        """Take the slot of the next layer and return what its router reads; None without one."""
        layer = self.next_layer
        self.next_layer += 1
        if layer == 0:
            self.begin(own[0])
        if self._shared is not None:
            slots = self._shared.slots(layer, self.handed)
            slots.append(*own)
            routed = router(own[0], slots) if router is not None else None
            self.handed = slots.handed
            return routed
        self.handed = (*self.handed, *own)
        if router is None:
            return None
        # Layers of one model may lie on several devices.
        device, keys, values = own[0].device, self.handed[::2], self.handed[1::2]
        sources = (*self.sources[layer], layer)
        return router(own[0], [(keys[j].to(device), values[j].to(device)) for j in sources])


class Running(threading.local):
    """The lanes of the forward that a thread is in."""

    lanes: list[Lane] | None = None

    def __reduce__(self) -> Any:
        """Copy and pickle as what is in no forward."""
        return type(self), ()


class CheckpointedLayer:
    """Takes the place of the checkpointing function that transformers gives a layer."""

    def __init__(
        self, attachment: "Attachment", layer: int, checkpoint: Callable[..., Any]
    ) -> None:
        self.attachment, self.layer, self.checkpoint = attachment, layer, checkpoint

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Checkpoint ``function(*args)``, the forward of the layer, and what it hands on."""
        attachment, layer = self.attachment, self.layer
        n_args, is_tuple = len(args), True
        lanes = attachment.lanes_of(layer)
        if layer == 0:
            for lane in lanes:
                lane.begin(args[0])
        # Without tensors of later layers, which hold the graph that will hold ``run``.
        blank = [lane.at(layer) for lane in lanes]

        def run(*inputs: Any) -> tuple[Any, ...]:
            nonlocal is_tuple
            handed, running = iter(inputs[n_args:]), attachment.running
            own = [lane.at(layer, tuple(islice(handed, lane.handed_to(layer)))) for lane in blank]
            before, running.lanes = running.lanes, own
            try:
                output = function(*inputs[:n_args])
            finally:
                running.lanes = before
            attachment.check_called(own, layer + 1)
            is_tuple = isinstance(output, tuple)
            outputs = output if is_tuple else (output,)
            return (*outputs, *(tensor for lane in own for tensor in lane.handed))

        outputs = self.checkpoint(run, *args, *(tensor for lane in lanes for tensor in lane.handed))
        n_outputs = len(outputs) - sum(lane.handed_by(layer) for lane in lanes)
        handed_on = iter(outputs[n_outputs:])
        for lane in lanes:
            lane.handed = tuple(islice(handed_on, lane.handed_by(layer)))
            lane.next_layer = layer + 1
        return outputs[:n_outputs] if is_tuple else outputs[0]
