"""Record the weights with which a model mixes states or slots of different depths.

Forward hooks on ``DepthWeights`` modules keep the mean and the standard deviation over tokens, not
counting padding, so that memory does not grow with the text.

Letters: B batch, T tokens, C readers, S sources.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layermem.models.seams import DepthWeights
from layermem_bench.results.analysis import DepthMixture

_PARTS = {"attn_connection": "attention", "mlp_connection": "mlp", "memory": "memory"}


class _Moments:
    """Count, mean and sum of squared deviations of weights [C, S]."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: np.ndarray = np.zeros(())
        self.squares: np.ndarray = np.zeros(())

    def add(self, weights: np.ndarray) -> None:
        """Add weights [tokens, C, S]."""
        if not len(weights):
            return
        mean = weights.mean(0)
        squares = np.square(weights - mean).sum(0)
        # The moments of two sets together, without the cancellation of sums of squares.
        total = self.count + len(weights)
        apart = mean - self.mean
        self.squares = self.squares + squares + apart**2 * (self.count * len(weights) / total)
        self.mean = self.mean + apart * (len(weights) / total)
        self.count = total


class DepthRecorder:
    """The weights that ``recording`` has seen."""

    def __init__(self) -> None:
        self._watched: dict[str, tuple[DepthWeights, _Moments]] = {}
        self._mask: Tensor | None = None

    def mixtures(self) -> tuple[DepthMixture, ...]:
        """Return what each place has read, in the order of the model's modules."""
        return tuple(
            DepthMixture(
                place=_name_place(path),
                readers=tuple(module.readers),
                sources=tuple(module.sources),
                mean=to_rows(moments.mean),
                deviation=to_rows(np.sqrt(moments.squares / moments.count)),
            )
            for path, (module, moments) in self._watched.items()
            if moments.count
        )

    def watch(self, model: nn.Module) -> Iterator[Any]:
        """Register the hooks on a model; yield their handles."""
        for path, module in model.named_modules():
            if isinstance(module, DepthWeights):
                self._watched[path] = module, _Moments()
                yield module.register_forward_hook(partial(self._record, self._watched[path][1]))
        base: Any = getattr(model, "base_model", model)
        yield base.register_forward_pre_hook(self._note_mask, with_kwargs=True)

    def _note_mask(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Keep the attention mask of the forward that begins."""
        self._mask = kwargs.get("attention_mask")

    def _record(self, moments: _Moments, module: nn.Module, args: Any, weights: Tensor) -> None:
        mask = self._mask
        if mask is not None and mask.dim() == 2 and weights.dim() > 2:
            tokens = weights.shape[:-2]
            if tokens.numel() != mask.numel():
                raise ValueError(
                    f"{type(module).__name__} returns weights of {list(weights.shape)}, expected "
                    f"[C, S] or [B, T, C, S] with {list(mask.shape)} tokens: padding could not be "
                    "left out"
                )
            weights = weights.reshape(-1, *weights.shape[-2:])[mask.bool().flatten()]
        array = weights.detach().to("cpu", torch.float64).numpy()
        moments.add(array.reshape(-1, *array.shape[-2:]))


@contextmanager
def recording(model: nn.Module) -> Iterator[DepthRecorder]:
    """Record the weights over depth of every forward of ``model.base_model`` inside the block."""
    recorder = DepthRecorder()
    with ExitStack() as hooks:
        for handle in recorder.watch(model):
            hooks.callback(handle.remove)
        yield recorder


def _name_place(path: str) -> str:
    """Return where a module stands: ``layer 3, attention`` for a path through layers.3."""
    layer = re.search(r"\blayers\.(\d+)\.", path)
    if layer is None:
        return "final norm" if re.search(r"\bstream\b", path) else path
    part = next((_PARTS[part] for part in path.split(".") if part in _PARTS), path)
    return f"layer {layer[1]}, {part}"


def to_rows(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Return a matrix as a result holds it."""
    return tuple(map(tuple, matrix.tolist()))
