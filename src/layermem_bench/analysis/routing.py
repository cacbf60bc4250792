"""What layers read of earlier ones: routers' weights, weights over depth, and models without some.

Routers' weights are shown as shares of their absolute values, by target layer and source layer; a
layer without a router reads itself alone. If PEFT keeps several adapters, the weights are those
that a forward uses now. Weights over depth, of which each token has its own, are averaged.

Letters: L layers, R key-value heads, B batch, T tokens, C readers, S sources.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from layermem.models.lime_router import LimeRouter
from layermem.models.memories import active_memories, unadapted_memories
from layermem.models.seams import DepthWeights, OwnLayerMemory, Part, WeightsUnknown
from layermem_bench.analysis.capture import Subject
from layermem_bench.analysis.result import DepthMixture, Routing, to_rows

logger = logging.getLogger(__name__)
_PARTS = {"attn_connection": "attention", "mlp_connection": "mlp", "memory": "memory"}


def what_routers_read(subject: Subject) -> Mapping[str, Any]:
    """Return what the routers read, or why that is not known; nothing without routers."""
    model = subject.model
    if not active_memories(model):
        return {}
    try:
        heatmap = mean_heatmap(model)
    except WeightsUnknown as error:
        logger.info("what the routers of %s read is left out: %s", subject.checkpoint.name, error)
        return {"routing_unknown": str(error)}
    if np.array_equal(heatmap, np.eye(len(heatmap))):
        return {}
    parts = {part: mean_heatmap(model, part) for part in get_args(Part)}
    alike = all(np.array_equal(part, heatmap) for part in parts.values())
    routing = Routing(
        heatmap=to_rows(heatmap),
        heads=tuple(map(to_rows, head_heatmaps(model))),
        parts=None if alike else {name: to_rows(part) for name, part in parts.items()},
    )
    return {"routing": routing}


def mean_heatmap(model: nn.Module, part: Part | None = None) -> np.ndarray:
    """Return [L, L]: the share of what layer i reads that comes from layer j, over all heads.

    ``part``: of keys or of values; None: of both.
    """
    sizes = _weight_sizes(model, part).mean(1)
    return np.asarray(sizes / sizes.sum(-1, keepdims=True))


def head_heatmaps(model: nn.Module) -> np.ndarray:
    """Return [L, R, L]: the same shares by target head; all zero for a head that reads nothing."""
    sizes = _weight_sizes(model)
    sums = sizes.sum(-1, keepdims=True)
    return np.asarray(sizes / np.where(sums, sums, 1.0))


@torch.no_grad()
def _weight_sizes(model: nn.Module, part: Part | None = None) -> np.ndarray:
    """Return [L, R, L]: absolute weights, averaged over source heads and, without ``part``, over
    keys and values."""
    memories = unadapted_memories(model)
    if not memories:
        raise ValueError(
            f"{type(model).__name__} has no memories: expected a model of this library, or one "
            "with attached memory"
        )
    # Attached memory has a router in each layer after the first, and there alone.
    attached = isinstance(memories[0], LimeRouter) and memories[0].layer == 1
    first = 1 if attached else 0
    depth = first + len(memories)
    by_layer = [np.eye(depth)[layer : layer + 1] for layer in range(depth)]
    for layer, memory in enumerate(memories, start=first):
        if isinstance(memory, OwnLayerMemory):
            continue
        of_part = memory.static_weights_by_part()
        chosen = of_part.values() if part is None else [of_part[part]]
        # The weights are [target head, source layer, source head].
        sizes = np.mean([w.double().abs().mean(2).cpu().numpy() for _, w in chosen], axis=0)
        sources = next(iter(chosen))[0]
        if not np.isfinite(sizes).all() or not sizes.sum():
            raise ValueError(
                f"the weights of the router of layer {layer} are all zero, or not finite"
            )
        over_all_layers = np.zeros((len(sizes), depth))
        over_all_layers[:, list(sources)] = sizes
        by_layer[layer] = over_all_layers
    heads = max(map(len, by_layer))
    return np.stack([np.broadcast_to(sizes, (heads, depth)) for sizes in by_layer])


def weights_over_depth(subject: Subject) -> Mapping[str, Any]:
    """Return what each place that mixes over depth reads on the sequences, in the model's order.

    The moments over tokens, without padding, take memory that does not grow with the text.
    """
    modules = {p: m for p, m in subject.model.named_modules() if isinstance(m, DepthWeights)}
    if not modules:
        return {}
    seen: dict[str, Tensor] = {}
    moments = {path: StandardScaler() for path in modules}

    def note(path: str, module: nn.Module, inputs: Any, weights: Tensor) -> None:
        seen[path] = weights.detach()

    with ExitStack() as hooks:
        for path, module in modules.items():
            hooks.callback(module.register_forward_hook(partial(note, path)).remove)
        for captured in subject.captured(subject.texts.sequences, "weights over depth", kinds=()):
            for path, weights in seen.items():
                # Constant weights are [C, S] or [1, C, S]; others have a row for each token.
                rows = weights.reshape(-1, weights.shape[-2:].numel()).cpu().double().numpy()
                is_by_token = len(rows) == captured.mask.size
                moments[path].partial_fit(rows[captured.mask.flatten()] if is_by_token else rows)
    mixtures = tuple(
        DepthMixture(
            place=_name_place(path),
            readers=tuple(module.readers),
            sources=tuple(module.sources),
            mean=to_rows(moments[path].mean_.reshape(len(module.readers), -1)),
            deviation=to_rows(np.sqrt(moments[path].var_).reshape(len(module.readers), -1)),
        )
        for path, module in modules.items()
    )
    return {"mixtures": mixtures}


def _name_place(path: str) -> str:
    """Return where a module stands: ``layer 3, attention`` for a path through layers.3."""
    layer = re.search(r"\blayers\.(\d+)\.", path)
    if layer is None:
        return "final norm" if re.search(r"\bstream\b", path) else path
    part = next((_PARTS[part] for part in path.split(".") if part in _PARTS), path)
    return f"layer {layer[1]}, {part}"


def weight_groups(model: Any) -> tuple[str, ...]:
    """Return the groups of routers' weights, such as "keys of the first layer"; empty: no routers.

    A group is what all routers read of keys, of values, or of both, from the first layer or from
    the other earlier layers.
    """
    names = dict.fromkeys(name for name, _ in _columns(model))
    return tuple(sorted(names, key=lambda name: (name.split(" of ")[0], "first" not in name)))


@contextmanager
def without(model: Any, group: str) -> Iterator[None]:
    """Set the weights of a group to 0 within the block; the rest is as trained."""
    chosen = [columns for name, columns in _columns(model) if name == group]
    kept = [columns.clone() for columns in chosen]
    for columns in chosen:
        columns.zero_()
    try:
        yield
    finally:
        for columns, weights in zip(chosen, kept, strict=True):
            columns.copy_(weights)


def _columns(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield views of the columns of all routers' weights for earlier layers, by their group."""
    for router in unadapted_memories(model):
        if not isinstance(router, LimeRouter):
            continue
        earlier = len(router.sources) - (router.sources[-1] == router.layer)
        starts = 1 if router.sources[0] == 0 and earlier else 0
        for reads, weight in router.named_weights().items():
            by_source = weight.detach().unflatten(1, (len(router.sources), router.columns))
            if starts:
                yield f"{reads} of the first layer", by_source[:, :starts]
            if earlier > starts:
                yield f"{reads} of the other earlier layers", by_source[:, starts:earlier]
