"""Capture hidden states and routed values of every layer of a decoder, batch by batch.

Forward hooks copy them to the CPU, of any decoder, bare or with attached memory; those of a batch
are dropped when the next one starts.

Letters: B batch, T tokens, D model width, G key-value heads, E head width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from layermem.models.attention import Attention
from layermem.models.memories import active_memories
from layermem.retrofit.hosts import find_host, find_module, measure
from layermem_bench.analysis.result import AnalysisOptions, Representation
from layermem_bench.analysis.texts import Texts
from layermem_bench.run.trained_models import Checkpoint

KINDS: tuple[Representation, ...] = get_args(Representation)
Place = tuple[Representation, int]
"""A representation and its layer."""
# Sequences in a batch, at most.
_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class CapturedBatch:
    """Activations of one batch in float32, by representation and layer."""

    mask: np.ndarray
    """Attention mask [B, T]; False: padding."""
    arrays: Mapping[Place, np.ndarray]

    @property
    def hidden(self) -> list[np.ndarray]:
        """Output of each layer [B, T, D]."""
        return [array for (kind, _), array in self.arrays.items() if kind == "hidden"]

    @property
    def routed(self) -> list[np.ndarray]:
        """The values that each layer's attention reads [B, T, G * E]; without routing, its own."""
        return [array for (kind, _), array in self.arrays.items() if kind == "routed"]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is analyzed, and what it reads."""

    model: Any
    checkpoint: Checkpoint
    texts: Texts
    options: AnalysisOptions

    def captured(
        self, texts: Sequence[str], what: str, *, kinds: Sequence[Representation] = KINDS
    ) -> Iterator[CapturedBatch]:
        """Yield what layers compute of texts that are cut to the options' length."""
        return capture(self.model, self._batches(texts, what), kinds=kinds)

    def _batches(self, texts: Sequence[str], what: str) -> Iterator[dict[str, Tensor]]:
        """Yield texts encoded, cut and padded on the right; show progress."""
        length, tokenizer = self.options.length, self.checkpoint.tokenizer
        padding = tokenizer.pad_token_id
        padding = tokenizer.eos_token_id if padding is None else padding
        size = min(_BATCH, sequences_at_once(self.model, length))
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for start in progress.track(range(0, len(texts), size), description=what):
                batch = list(texts[start : start + size])
                encoded = tokenizer(batch, add_special_tokens=False)["input_ids"]
                ids = [torch.tensor(row[:length], dtype=torch.long) for row in encoded]
                ones = list(map(torch.ones_like, ids))
                yield {
                    "input_ids": pad_sequence(ids, batch_first=True, padding_value=padding),
                    "attention_mask": pad_sequence(ones, batch_first=True),
                }


def capture(
    model: PreTrainedModel,
    batches: Iterable[Tensor | Mapping[str, Tensor]],
    *,
    kinds: Sequence[Representation] = KINDS,
) -> Iterator[CapturedBatch]:
    """Run a model on each batch and yield the activations of its layers.

    A batch is token ids [B, T], or a tokenizer's output (padded, with its mask). The model runs in
    eval mode, without gradients and without its head; between batches it is in its former mode.
    """
    layers = decoder_layers(model)
    degree = getattr(getattr(model.config, "distributed_config", None), "tp_size", None) or 1
    if degree > 1 and "routed" in kinds:
        raise ValueError(
            f"tp_size={degree}: each process has the values of some heads only; load the "
            'model without a tp_plan, or capture kinds=("hidden",)'
        )
    for batch in batches:
        inputs = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch}
        inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
        arrays: dict[Place, np.ndarray] = {}
        with ExitStack() as hooks, torch.inference_mode():
            hooks.callback(model.train, model.training)
            model.eval()
            for i, layer in enumerate(layers):
                if "hidden" in kinds:
                    _register(hooks, layer, partial(_keep, arrays, ("hidden", i), _first))
                if "routed" in kinds:
                    module, select = _find_values(model, layer)
                    # Attached memory replaces what a projection returns by a forward hook, which
                    # it moves when a forward begins to a projection that is new (as LoRA's): ours
                    # is registered after that.
                    keep = partial(_keep, arrays, ("routed", i), select)
                    begin = partial(_register, hooks, module, keep)
                    hooks.callback(layer.register_forward_pre_hook(begin).remove)
            # The base model alone: the head's logits are large and no layer depends on them.
            model.base_model(**inputs, use_cache=False)
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        yield CapturedBatch(mask=mask.cpu().numpy(), arrays=arrays)


def _register(hooks: ExitStack, module: nn.Module, hook: Callable[..., None], *_: Any) -> None:
    hooks.callback(module.register_forward_hook(hook).remove)


def _keep(
    arrays: dict[Place, np.ndarray],
    place: Place,
    select: Callable[[Any], Tensor],
    module: nn.Module,
    inputs: Any,
    output: Any,
) -> None:
    # A copy even of float32 on the CPU: models change tensors in place later.
    arrays[place] = select(output).detach().to("cpu", torch.float32, copy=True).numpy()


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _find_values(
    model: PreTrainedModel, layer: nn.Module
) -> tuple[nn.Module, Callable[[Any], Tensor]]:
    """Return the module that computes the values of a layer, and what selects them from its output.

    Another library's is a norm of values or a projection ``v_proj``, or one of the hosts of
    ``layermem.attach``.
    """
    if any(isinstance(module, Attention) for module in layer.modules()):
        # A memory returns (key, value), both [B, G, T, E].
        return active_memories(layer)[0], lambda output: output[1].transpose(1, 2).flatten(2)
    modules = {name.rpartition(".")[2]: module for name, module in layer.named_modules()}
    if "v_norm" in modules:
        # Gemma 3n and 4 normalise the heads [B, T, G, E] that attention will read.
        return modules["v_norm"], lambda heads: heads.flatten(2)
    if "v_proj" in modules:
        return modules["v_proj"], lambda output: output
    owner, host = find_host(model)
    attention = find_module(layer, host.attention)
    if not host.fused:
        return find_module(attention, host.value), lambda output: output
    _, shape = measure(model, owner, host)
    projection = find_module(attention, host.fused)
    return projection, lambda output: shape.take(output)[1].transpose(1, 2).flatten(2)


def sequences_at_once(model: PreTrainedModel, length: int, memory: int = 2**27) -> int:
    """Return how many sequences fit in a batch if two kinds of arrays may take ``memory`` bytes."""
    numbers = 2 * model.config.num_hidden_layers * model.config.hidden_size * length
    return max(1, memory // (4 * numbers))


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the layers of a decoder: the first ``ModuleList`` of its depth.

    A layer may have longer lists inside, such as experts.
    """
    config: Any = getattr(model, "config", None)
    depth = config and config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise ValueError(f"{type(model).__name__} has no list of layers; give a decoder")
