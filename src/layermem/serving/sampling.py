"""What changes scores: draws and penalties of a prompt that do not depend on its batch.

    argmax_i (logit_i + g_i), g_i = -log(e_i), e_i ~ Exp(1)      is a draw from softmax(logits)

Each prompt has a generator of its own, so its noise is the same in any batch. The logits are then
what may differ: by rounding, with the padding. transformers' penalty of repetitions would punish
the padding token in rows that have padding.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from layermem.serving.settings import GenerationSettings

# Of transformers' generation config, which would change the distribution, with no effect as these.
_UNSUPPORTED = {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None}


class NoiseOfPrompts(LogitsProcessor):
    """Adds to each row of scores the noise of its prompt, so that its maximum is a draw."""

    def __init__(self, seed: int, indices: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(_seed_of(seed, i)) for i in indices]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [B, vocabulary] with noise; a step of generation calls it once."""
        noise = torch.stack(
            [
                torch.empty(scores.shape[1]).exponential_(generator=generator)
                for generator in self.generators
            ]
        )
        return scores.float() - noise.log().to(scores.device)


class RepetitionPenalty(LogitsProcessor):
    """Lowers the scores of tokens that a row has, without its padding on the left."""

    def __init__(self, penalty: float, mask: Tensor) -> None:
        self.penalty, self.mask = penalty, mask.bool()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [B, vocabulary]; of a beam search a prompt has several rows."""
        width = self.mask.shape[1]
        mask = self.mask.repeat_interleave(len(input_ids) // len(self.mask), dim=0)
        # The last token of a prompt is none of its padding, and stands in for it.
        prompt = torch.where(mask, input_ids[:, :width], input_ids[:, width - 1 : width])
        ids = torch.cat((prompt, input_ids[:, width:]), dim=1)
        seen = scores.gather(1, ids)
        seen = torch.where(seen < 0, seen * self.penalty, seen / self.penalty)
        return scores.scatter(1, ids, seen)


def sampling_processors(
    settings: GenerationSettings, own: Any, indices: Sequence[int]
) -> LogitsProcessorList:
    """Return what makes scores draws of prompts; ``own`` is the model's generation config."""
    for name, neutral in _UNSUPPORTED.items():
        value = getattr(own, name, None)
        if value is not None and value != neutral:
            raise ValueError(
                f"the model's generation_config.json sets {name}={value}, which is not supported; "
                "delete it there, and use --temperature, --top-p or --top-k"
            )
    temperature = _chosen(settings.temperature, own.temperature, 1.0)
    top_k = _chosen(settings.top_k, own.top_k, 0)
    top_p = _chosen(settings.top_p, own.top_p, 1.0)
    min_p = getattr(own, "min_p", None)
    processors = LogitsProcessorList()
    if temperature != 1.0:
        processors.append(TemperatureLogitsWarper(float(temperature)))
    if top_k:
        processors.append(TopKLogitsWarper(top_k=int(top_k)))
    if top_p < 1.0:
        processors.append(TopPLogitsWarper(top_p=float(top_p)))
    if min_p is not None:
        processors.append(MinPLogitsWarper(min_p=min_p))
    processors.append(NoiseOfPrompts(settings.seed, indices))
    return processors


def _chosen(given: Any, own: Any, neutral: Any) -> Any:
    return given if given is not None else own if own is not None else neutral


def _seed_of(seed: int, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:7], "big")
