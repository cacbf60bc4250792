"""``Attachment``: what ``attach`` has put into one model, and the hooks that route its keys.

    a hook before and after the module that runs the layers   begin and end the lanes of a forward
    a hook on each projection to keys and values              takes its slot, returns the routed one
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
from layermem.retrofit.slots import CheckpointedLayer, Lane, Running

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
        owner: nn.Module,
        host: Host,
        attentions: Sequence[nn.Module],
        shape: ProjectionShape,
        sources: Sequence[tuple[int, ...]],
        settings: dict[str, Any],
    ) -> None:
        self.owner, self.host, self.shape, self.settings = owner, host, shape, settings
        # What a lane routes: keys and values together, or keys first and then values.
        self.parts: tuple[Part | None, ...] = (None,) if host.fused else ("key", "value")
        self.layers: list[nn.Module] = list(owner.get_submodule(host.layers).children())
        self.attentions, self.sources = list(attentions), list(sources)
        self.running = Running()
        # Of the host's parameters that `trainable` has set: whether they trained before.
        self.trained_before: dict[nn.Parameter, bool] = {}
        # The hooks on the owner, and by layer and lane the hooked projection with its hook.
        self._handles: list[RemovableHandle] = []
        self._hooked: dict[tuple[int, int], tuple[nn.Module, RemovableHandle]] = {}

    @property
    def routers(self) -> dict[int, nn.Module]:
        """The router of each layer but the first: with PEFT's copies, the one called now."""
        return {i: active_memories(each)[0] for i, each in enumerate(self.attentions) if i > 0}

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
                    handle = projection.register_forward_hook(partial(self._route, i, lane))
                    self._hooked[i, lane] = projection, handle
            if runs_twice(layer):
                function: Any = getattr(layer, _CHECKPOINT)
                if not isinstance(function, CheckpointedLayer):
                    setattr(layer, _CHECKPOINT, CheckpointedLayer(self, i, function))

    def _begin(self, module: nn.Module, args: Any) -> None:
        self.rearm()
        routers = {i: attn._modules.get(MEMORY) for i, attn in enumerate(self.attentions)}
        # This replaces the lanes of a forward that an interrupt from a key has ended.
        self.running.lanes = [
            Lane(self.sources, partial(begin_routes, routers, part=part)) for part in self.parts
        ]

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        lanes, self.running.lanes = self.running.lanes, None
        # After an error there is no output.
        if lanes is not None and output is not None:
            # Assisted generation lowers the config's number of layers.
            count, config = len(self.layers), getattr(self.owner, "config", None)
            self.check_called(lanes, min(count, getattr(config, "num_hidden_layers", count)))

    def _route(
        self, layer: int, number: int, module: nn.Module, args: Any, output: Tensor
    ) -> Tensor | None:
        """Take what a projection returns as a slot, and return what the layer's router reads."""
        lane = self.lanes_of(layer)[number]
        is_second = lane.next_layer == layer + 1
        if self.host.key_projects_positions and number == 0 and is_second:
            # The tokens' came first.
            return None
        if lane.next_layer != layer:
            raise RuntimeError(
                f"the {self.host.projections[number]} of layer {layer} was called where that of "
                f"layer {lane.next_layer} was due: each layer must run once in a forward, in order"
            )
        router: Any = self.attentions[layer]._modules.get(MEMORY)
        if router is not None:
            router = partial(router, part=self.parts[number])
        routed = lane.read(self.shape.take(output), router)
        return None if routed is None else self.shape.put(output, routed)

    def lanes_of(self, layer: int) -> list[Lane]:
        """Return the lanes of this thread's forward; raise ``RuntimeError`` if there is none."""
        lanes = self.running.lanes
        if lanes is None:
            raise RuntimeError(
                f"layer {layer} of an attached model was called outside of its forward: call the "
                "model; checkpoint activations by model.gradient_checkpointing_enable(), not by a "
                "wrapper around layers"
            )
        return lanes

    def check_called(self, lanes: Sequence[Lane], count: int) -> None:
        """Raise ``RuntimeError`` if a projection was not called, and so nothing was routed."""
        for lane, name in zip(lanes, self.host.projections, strict=True):
            if lane.next_layer < count:
                raise RuntimeError(
                    f"the {name} of layer {lane.next_layer} was not called, so that its layer's "
                    "memory was left out: use the model's own attention, no fused one"
                )


def attachment_of(model: nn.Module) -> Attachment:
    """Return the attachment of a model; raise ``ValueError`` if it has none, or several."""
    attachments = [vars(m)[ATTRIBUTE] for m in model.modules() if ATTRIBUTE in vars(m)]
    if not attachments:
        raise ValueError(f"{type(model).__name__} has no layer memory; attach(model) adds it")
    if len(attachments) > 1:
        raise ValueError(
            f"{type(model).__name__} has {len(attachments)} stacks of layers with memory: give one "
            "of them, as model.encoder"
        )
    attachment: Attachment = attachments[0]
    return attachment


def owner_path(model: nn.Module) -> str:
    """Return the name of the module that runs the layers with memory of a model."""
    owner = attachment_of(model).owner
    return next(name for name, module in model.named_modules() if module is owner)


def has_memory(model: nn.Module) -> bool:
    """Return whether memory is attached to a model."""
    return any(ATTRIBUTE in vars(module) for module in model.modules())


def check_same_memory(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if memory was saved for other layers, heads or sources."""
    saved = {**DEFAULTS, **saved}
    for name in ("layers", "heads", "head_dim", *DEFAULTS):
        if saved.get(name) != own[name]:
            raise ValueError(
                f"saved were {saved.get('architecture')} with {name}={saved.get(name)!r}, this "
                f"{own['architecture']} has {name}={own[name]!r}; attach memory as it was saved"
            )
