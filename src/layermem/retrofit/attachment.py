"""``Attachment``: what ``attach`` has put into one model, and the hooks that route its keys.

    a hook before and after the module that runs the layers   begin and end the slots of a forward
    a hook on each projection to keys and values              keeps its slot, returns the routed one
    transformers' checkpointing function of each layer        is wrapped (``CheckpointedLayer``)

When a forward begins, ``rearm`` looks whether projections have been replaced (by LoRA, say) or
checkpointing switched on, and moves its hooks there: what is routed is what the host computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from layermem.models.memories import active_memories, begin_routes, runs_twice
from layermem.models.seams import Part
from layermem.retrofit.hosts import Host, ProjectionShape
from layermem.retrofit.slots import (
    BeginRoutes,
    CheckpointedLayer,
    RunningForward,
    SlotLane,
    enter,
    leave,
    running,
)

# Where a router lies in its attention, as in a decoder of ours, and the attachment in the module
# that runs the layers.
MEMORY = "memory"
ATTRIBUTE = "_layer_memory"
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"router": "full", "window": None, "shares_kv": True, "grain": "pair"}
)
"""The arguments of ``attach`` that files hold, and what a file means that lacks one."""
# Where transformers keeps the function that checkpoints a layer.
_CHECKPOINT = "_gradient_checkpointing_func"


class Attachment:
    """The layers of one model, their routers, and the hooks on them."""

    def __init__(
        self,
        *,
        owner: nn.Module,
        host: Host,
        attentions: Sequence[nn.Module],
        shape: ProjectionShape,
        sources: Sequence[tuple[int, ...]],
        settings: dict[str, Any],
    ) -> None:
        self.owner, self.host, self.shape, self.settings = owner, host, shape, settings
        # What a lane routes: keys and values together, or keys first and then values.
        together: tuple[Part | None, ...] = (None,)
        self.parts = together if host.fused else ("key", "value")
        self.layers: list[nn.Module] = list(owner.get_submodule(host.layers).children())
        self.attentions, self.sources = list(attentions), list(sources)
        last_reader = {j: i for i, earlier in enumerate(sources) for j in earlier}
        # Of the host's parameters that `trainable` has set: whether they trained before, and after.
        self.trained: list[tuple[nn.Parameter, bool, bool]] = []
        self.freed = [
            tuple(j for j in range(i + 1) if last_reader.get(j, j) == i)
            for i in range(len(sources))
        ]
        # The hooks on the owner, and by layer and lane the hooked projection with its hook.
        self._handles: list[RemovableHandle] = []
        self._hooked: dict[tuple[int, int], tuple[nn.Module, RemovableHandle]] = {}

    @property
    def routers(self) -> dict[int, nn.Module]:
        """The router of each layer that has one: with PEFT's copies, the one called now."""
        return {
            i: active_memories(attention.get_submodule(MEMORY))[0]
            for i, attention in enumerate(self.attentions)
            if MEMORY in attention._modules
        }

    def describe(self) -> dict[str, Any]:
        """Return how memory is attached, for files: ``attach_as_saved`` does it again."""
        return {
            # FSDP2 prefixes the class name.
            "architecture": type(self.owner).__name__.removeprefix("FSDP"),
            "host": asdict(self.host),
            "layers": len(self.layers),
            "heads": self.shape.heads,
            "head_dim": self.shape.head_dim,
            **self.settings,
        }

    def install(self) -> None:
        """Register all hooks."""
        self._handles = [
            self.owner.register_forward_pre_hook(self._begin, prepend=True),
            # Also after a forward that has raised.
            self.owner.register_forward_hook(self._end, always_call=True),
        ]
        self.rearm()

    def remove(self) -> None:
        """Remove all hooks, and leave the modules as they were."""
        for handle in (*self._handles, *(handle for _, handle in self._hooked.values())):
            handle.remove()
        for layer, attention in zip(self.layers, self.attentions, strict=True):
            wrapped = vars(layer).get(_CHECKPOINT)
            if isinstance(wrapped, CheckpointedLayer):
                setattr(layer, _CHECKPOINT, wrapped.checkpoint)
            attention._modules.pop(MEMORY, None)

    def rearm(self) -> None:
        """Put hooks on the projections and layers as they are now."""
        for i, (layer, attention) in enumerate(zip(self.layers, self.attentions, strict=True)):
            for lane, name in enumerate(self.host.projections):
                projection = attention.get_submodule(name)
                before = self._hooked.get((i, lane))
                if before is None or before[0] is not projection:
                    if before is not None:
                        before[1].remove()
                    handle = projection.register_forward_hook(_Projected(self, i, lane))
                    self._hooked[i, lane] = projection, handle
            if runs_twice(layer):
                function: Any = getattr(layer, _CHECKPOINT)
                if not isinstance(function, CheckpointedLayer):
                    setattr(layer, _CHECKPOINT, CheckpointedLayer(self, i, function))

    def _begin(self, module: nn.Module, args: Any) -> None:
        self.rearm()
        enter(self.begin_forward())

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        forward = running(self)
        leave(self)
        # After an error there is no output.
        if forward is not None and output is not None:
            self._check_all_ran(forward)

    def _check_all_ran(self, forward: RunningForward) -> None:
        """Raise ``RuntimeError`` if a projection was not called, and so nothing was routed."""
        # Assisted generation lowers the config's number of layers.
        config = getattr(self.owner, "config", None)
        count = min(len(self.layers), getattr(config, "num_hidden_layers", len(self.layers)))
        for lane, name in zip(forward.lanes, self.host.projections, strict=True):
            if lane.next_layer < count:
                raise RuntimeError(
                    f"the {name} of layer {lane.next_layer} was not called, so that its layer's "
                    "memory was left out: an attention that multiplies by the weight itself, as "
                    "fused ones do, cannot have memory; use the model's own"
                )

    def begin_forward(self) -> RunningForward:
        """Return a forward with a lane for each projection of a layer."""
        routers = [attention._modules.get(MEMORY) for attention in self.attentions]
        begin = partial(begin_routes, dict(enumerate(routers)))
        if any(map(runs_twice, self.layers)):
            return self.begin_layer()
        return self._with_lanes([partial(begin, part=part) for part in self.parts])

    def begin_layer(self) -> RunningForward:
        """Return what stands for a forward while one layer runs by itself."""
        return self._with_lanes([None] * len(self.parts))

    def _with_lanes(self, begins: Sequence[BeginRoutes | None]) -> RunningForward:
        lanes = [SlotLane(self.sources, self.freed, begin) for begin in begins]
        return RunningForward(self, lanes)

    def current(self, layer: int) -> RunningForward:
        """Return the forward that is running; raise ``RuntimeError`` if there is none."""
        forward = running(self)
        if forward is None:
            raise RuntimeError(
                f"layer {layer} of an attached model was called outside of the forward of its "
                f"{type(self.owner).__name__}, so that the slots of earlier layers are not known: "
                "call the model; checkpoint activations by model.gradient_checkpointing_enable(), "
                "not by a wrapper around layers; or detach the model first"
            )
        return forward


def attachment_of(model: nn.Module) -> Attachment:
    """Return the attachment of a model; raise ``ValueError`` if it has none."""
    found = [vars(module).get(ATTRIBUTE) for module in model.modules()]
    attachments = [each for each in found if isinstance(each, Attachment)]
    if len(attachments) > 1:
        raise ValueError(
            f"{type(model).__name__} has {len(attachments)} stacks of layers with memory: give the "
            "one that is meant, as model.encoder"
        )
    if not attachments:
        raise ValueError(f"{type(model).__name__} has no layer memory; attach(model) adds it")
    return attachments[0]


def owner_path(model: nn.Module) -> str:
    """Return the name of the module that runs the layers with memory of a model."""
    owner = attachment_of(model).owner
    return next(name for name, module in model.named_modules() if module is owner)


def has_memory(model: nn.Module) -> bool:
    """Return whether memory is attached to a model."""
    return any(ATTRIBUTE in vars(module) for module in model.modules())


def name_memory(settings: Mapping[str, Any]) -> str:
    """Return a few words on how memory is attached, for cards: "last, window 4, by head"."""
    router, window, shares_kv, grain = (settings.get(k, d) for k, d in DEFAULTS.items())
    return ", ".join(
        [router]
        + [f"window {window}"] * (window is not None)
        + ["keys and values apart"] * (not shares_kv)
        + [f"by {grain}"] * (grain != "pair")
    )


def check_same_memory(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if memory was saved for other layers, heads or sources."""
    saved = {**DEFAULTS, **saved}
    for name in ("layers", "heads", "head_dim", *DEFAULTS):
        if saved.get(name) != own[name]:
            raise ValueError(
                f"saved were {saved.get('architecture')} with {name}={saved.get(name)!r}, this "
                f"{own['architecture']} has {name}={own[name]!r}; give the model that memory was "
                "attached to, attached as it was"
            )


class _Projected:
    """Keeps what a projection returns as a slot, and returns what the layer's router reads."""

    def __init__(self, attachment: Attachment, layer: int, lane: int) -> None:
        self.attachment, self.layer, self.lane = attachment, layer, lane

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Any:
        attachment = self.attachment
        forward = attachment.current(self.layer)
        if attachment.host.key_projects_positions and not self._is_of_tokens(forward, args[0]):
            return None
        lane = forward.lanes[self.lane]
        if lane.next_layer != self.layer:
            raise RuntimeError(
                f"the {attachment.host.projections[self.lane]} of layer {self.layer} was called "
                f"where that of layer {lane.next_layer} was due: each layer must run once in a "
                "forward, in order; a layer that is left out or runs twice has no slot to read"
            )
        pair = attachment.shape.take(output)
        router: Any = attachment.attentions[self.layer]._modules.get(MEMORY)
        if router is not None:
            router = partial(router, part=attachment.parts[self.lane])
        routed = lane.read(self.layer, pair, router)
        return None if routed is None else attachment.shape.put(output, routed)

    def _is_of_tokens(self, forward: RunningForward, x: Tensor) -> bool:
        """Whether a projection's input is the tokens', not embeddings of relative positions.

        The tokens come first, and are what values are computed from.
        """
        if self.lane == 0 and forward.lanes[0].next_layer == self.layer:
            forward.key_input = x
            return True
        if self.lane == 1 and forward.key_input is not x:
            raise RuntimeError(
                f"keys and values of layer {self.layer} are projected from different tensors, so "
                "that the keys of tokens cannot be told from those of relative positions"
            )
        return self.lane == 1
