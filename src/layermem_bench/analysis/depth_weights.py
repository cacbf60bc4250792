"""Record the weights with which a model mixes states or slots of different depths.

Forward hooks on ``DepthWeights`` modules keep the mean and the standard deviation over tokens, not
counting padding, so that memory does not grow with the text.

Letters: B batch, T tokens, C readers, S sources.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layermem.models.seams import DepthWeights
from layermem_bench.analysis.capture import Subject, capture
from layermem_bench.analysis.result import DepthMixture, to_rows

_PARTS = {"attn_connection": "attention", "mlp_connection": "mlp", "memory": "memory"}


def weights_over_depth(subject: Subject) -> Mapping[str, Any]:
    """Return what each place that mixes over depth reads on the sequences."""
    with recording(subject.model) as mixtures:
        if any(isinstance(module, DepthWeights) for module in subject.model.modules()):
            batches = subject.batches(subject.texts, "weights over depth")
            for _ in capture(subject.model, batches, kinds=()):
                pass
        return {"mixtures": mixtures()}


class _Moments:
    """Count, mean and sum of squared deviations of weights [C, S]."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: np.ndarray = np.zeros(())
        self.squares: np.ndarray = np.zeros(())

    def add(self, weights: np.ndarray) -> None:
        """Add weights [tokens, C, S], of one token or more."""
        mean = weights.mean(0)
        squares = np.square(weights - mean).sum(0)
        # The moments of two sets together, without the cancellation of sums of squares.
        total = self.count + len(weights)
        apart = mean - self.mean
        self.squares = self.squares + squares + apart**2 * (self.count * len(weights) / total)
        self.mean = self.mean + apart * (len(weights) / total)
        self.count = total


@contextmanager
def recording(model: nn.Module) -> Iterator[Callable[[], tuple[DepthMixture, ...]]]:
    """Record the weights over depth of every forward of ``model.base_model`` inside the block.

    Yield a function that returns what each place has read, in the order of the model's modules.
    """
    mask: Tensor | None = None
    places = {
        path: (module, _Moments())
        for path, module in model.named_modules()
        if isinstance(module, DepthWeights)
    }

    def note_mask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        nonlocal mask
        mask = kwargs.get("attention_mask")

    def record(moments: _Moments, module: nn.Module, args: Any, weights: Tensor) -> None:
        by_token = weights.detach().reshape(-1, *weights.shape[-2:])
        # Constant weights are [C, S] or [1, C, S]; others have a row for each token.
        if mask is not None and len(by_token) == mask.numel():
            by_token = by_token[mask.bool().flatten()]
        moments.add(by_token.to("cpu", torch.float64).numpy())

    def mixtures() -> tuple[DepthMixture, ...]:
        return tuple(
            DepthMixture(
                place=_name_place(path),
                readers=tuple(module.readers),
                sources=tuple(module.sources),
                mean=to_rows(moments.mean),
                deviation=to_rows(np.sqrt(moments.squares / moments.count)),
            )
            for path, (module, moments) in places.items()
            if moments.count
        )

    with ExitStack() as hooks:
        for module, moments in places.values():
            hooks.callback(module.register_forward_hook(partial(record, moments)).remove)
        base: Any = getattr(model, "base_model", model)
        hooks.callback(base.register_forward_pre_hook(note_mask, with_kwargs=True).remove)
        yield mixtures


def _name_place(path: str) -> str:
    """Return where a module stands: ``layer 3, attention`` for a path through layers.3."""
    layer = re.search(r"\blayers\.(\d+)\.", path)
    if layer is None:
        return "final norm" if re.search(r"\bstream\b", path) else path
    part = next((_PARTS[part] for part in path.split(".") if part in _PARTS), path)
    return f"layer {layer[1]}, {part}"
