"""From scores to text: draws and penalties of each prompt, where a continuation ends, its text.

    argmax_i (logit_i + g_i), g_i = -log(e_i), e_i ~ Exp(1)      is a draw from softmax(logits)

Each prompt has a generator of its own, so its noise is the same in any batch. The logits are then
what may differ: by rounding, with the padding. transformers' penalty of repetitions would punish
the padding token in rows that have padding.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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

from layermem_base.generation_settings import GenerationSettings

FinishReason = Literal["eos", "stop", "length"]
# Tokens of the prompt before a continuation: some tokenizers write a word differently at the start.
_TAIL = 8


class NotNaN(LogitsProcessor):
    """Raises where a score is NaN, which would be taken for the highest one."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [B, vocabulary] as they are."""
        if scores.isnan().any():
            raise ValueError(
                "the model computes NaN: its weights are not finite, or its precision is too low; "
                "try float32"
            )
        return scores


class NoiseOfPrompts(LogitsProcessor):
    """Adds to each row of scores the noise of its prompt, so that its maximum is a draw."""

    def __init__(self, seed: int, indices: Sequence[int]) -> None:
        digests = (hashlib.sha256(f"{seed} {i}".encode()).digest() for i in indices)
        seeds = (int.from_bytes(digest[:7], "big") for digest in digests)
        self.generators = [torch.Generator().manual_seed(each) for each in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [B, vocabulary] with noise; a step of generation calls it once."""
        draws = (torch.empty(scores.shape[1]).exponential_(generator=g) for g in self.generators)
        return scores.float() - torch.stack([*draws]).log().to(scores.device)


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


def processors(
    settings: GenerationSettings, own: Any, indices: Sequence[int], mask: Tensor
) -> LogitsProcessorList:
    """Return what changes the scores of the prompts of these indices.

    ``own``: the model's generation config, which holds where a setting is None. ``mask`` [B, T]: of
    the padded prompts.
    """
    made = LogitsProcessorList([NotNaN()])
    penalty = _chosen(settings.repetition_penalty, own.repetition_penalty, 1.0)
    if penalty != 1.0:
        made.append(RepetitionPenalty(penalty, mask))
    if not settings.do_sample:
        return made
    temperature = _chosen(settings.temperature, own.temperature, 1.0)
    top_k = _chosen(settings.top_k, own.top_k, 0)
    top_p = _chosen(settings.top_p, own.top_p, 1.0)
    min_p = getattr(own, "min_p", None)
    if temperature != 1.0:
        made.append(TemperatureLogitsWarper(float(temperature)))
    if top_k:
        made.append(TopKLogitsWarper(top_k=int(top_k)))
    if top_p < 1.0:
        made.append(TopPLogitsWarper(top_p=float(top_p)))
    if min_p is not None:
        made.append(MinPLogitsWarper(min_p=min_p))
    made.append(NoiseOfPrompts(settings.seed, indices))
    return made


def _chosen(given: Any, own: Any, neutral: Any) -> Any:
    return given if given is not None else own if own is not None else neutral


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The tokens generated after a prompt."""

    text: str
    """Their text, without a stop text and what follows it."""
    tokens: int
    """How many there are, without an end token, with those of a stop text."""
    reason: FinishReason
    """What ended it: an end token, a stop text, or the most tokens that were asked for."""


class Decoder:
    """Decodes continuations and finds their ends."""

    def __init__(self, tokenizer: Any, stop: Sequence[str], ends: Sequence[int]) -> None:
        self.tokenizer, self.stop, self.ends = tokenizer, tuple(stop), frozenset(ends)
        # Special tokens are left out of texts, so that one is found as a token alone.
        added = tokenizer.get_added_vocab()
        self.stop_ids = frozenset(
            added[text] for text in stop if text in added and not self._decode([added[text]])
        )
        # A token has a byte at least, so a stop text is in the last tokens, if it ends with them.
        self.window = max((len(text.encode()) for text in stop), default=0) + 4

    def text(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text that tokens add to a prompt's."""
        tail = list(prompt[-_TAIL:])
        before, both = self._decode(tail), self._decode([*tail, *ids])
        return both[len(before) :] if both.startswith(before) else self._decode(ids)

    def stops(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Return whether the text of tokens has a stop text, of which the last token is a part."""
        if not self.stop or not ids:
            return False
        if ids[-1] in self.stop_ids:
            return True
        # A tokenizer may strip the space of the first token, unless the prompt is before it.
        starts = len(ids) <= self.window
        recent = self.text(prompt, ids) if starts else self._decode(ids[-self.window :])
        if not any(text in recent for text in self.stop):
            return False
        text = self.text(prompt, ids)
        return any(stop in text for stop in self.stop)

    def cut(self, prompt: Sequence[int], ids: Sequence[int]) -> Continuation:
        """Return the continuation that generated tokens, padded behind its end, hold."""
        reason: FinishReason = "length"
        for n, token in enumerate(ids):
            if token in self.ends:
                ids, reason = ids[:n], "eos"
                break
            if self.stops(prompt, ids[: n + 1]):
                ids, reason = ids[: n + 1], "stop"
                break
        text = self.text(prompt, ids)
        if reason == "stop":
            # A special token is not in the text.
            starts = (text.index(stop) for stop in self.stop if stop in text)
            text = text[: min(starts, default=len(text))]
        return Continuation(text=text, tokens=len(ids), reason=reason)

    def _decode(self, ids: Sequence[int]) -> str:
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(list(ids), **options))
