"""``TextGenerator``: continue prompts in batches of about one length, with transformers' generate.

Prompts are padded on the left. The longest come first, so that memory that does not suffice is
noticed in the first batch.

Letters: B prompts of a batch, T tokens.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from layermem.generation.decoding import Continuation, Decoder, processors
from layermem.generation.prompts import Prompt
from layermem_base.generation_settings import GenerationSettings


class TextGenerator:
    """Continues prompts with one model and one way to choose tokens."""

    def __init__(self, model: Any, tokenizer: Any, settings: GenerationSettings) -> None:
        self.model, self.settings = model.eval(), settings
        self.own = model.generation_config
        self.config = _generation_config(model, tokenizer, settings)
        self.decoder = Decoder(tokenizer, settings.stop, self.config.eos_token_id or ())

    @torch.inference_mode()
    def continue_batch(self, batch: Sequence[Prompt]) -> list[Continuation]:
        """Return the continuations of a batch."""
        ids, mask = _pad_left(
            [prompt.ids for prompt in batch], self.config.pad_token_id, self.model.device
        )
        indices = [prompt.index for prompt in batch]
        choosing = {
            "stopping_criteria": StoppingCriteriaList(
                [_StopTexts(self.decoder, batch, ids.shape[1])]
            ),
            "logits_processor": processors(self.settings, self.own, indices, mask),
        }
        # transformers fills fields that are None from the model's own config.
        self.model.generation_config = self.config
        try:
            out = self.model.generate(ids, attention_mask=mask, **choosing)
        finally:
            self.model.generation_config = self.own
        rows = out[:, ids.shape[1] :].tolist()
        return [self.decoder.cut(p.ids, row) for p, row in zip(batch, rows, strict=True)]


def batches(prompts: Iterable[Prompt], size: int) -> list[list[Prompt]]:
    """Return prompts in batches, the longest first."""
    ordered = sorted(prompts, key=lambda prompt: (-len(prompt.ids), prompt.index))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


class _StopTexts(StoppingCriteria):
    """Ends rows with a stop text."""

    def __init__(self, decoder: Decoder, batch: Sequence[Prompt], width: int) -> None:
        self.decoder, self.batch, self.width = decoder, batch, width

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which rows [B] have ended; of a beam search there are several for a prompt."""
        ended = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        if self.decoder.stop:
            beams = len(input_ids) // len(self.batch)
            for row, ids in enumerate(input_ids[:, self.width :].tolist()):
                ended[row] = self.decoder.stops(self.batch[row // beams].ids, ids)
        return ended


def _generation_config(
    model: Any, tokenizer: Any, settings: GenerationSettings
) -> GenerationConfig:
    """Return the settings as a generation config; of the model's own it has the end tokens.

    Draws and penalties are made by processors of ours: transformers' own search is greedy. Whatever
    else the model's own says (n-grams that may not be repeated, suppressed tokens, a time limit)
    would change what is the most probable.
    """
    ends = model.generation_config.eos_token_id
    ends = ends if ends is not None else tokenizer.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    padding = tokenizer.pad_token_id
    return GenerationConfig(
        do_sample=False,
        eos_token_id=ends or None,
        # A masked position: any id will do.
        pad_token_id=padding if padding is not None else ends[0] if ends else 0,
        max_new_tokens=settings.max_new_tokens,
        num_beams=settings.num_beams,
        cache_implementation="static" if settings.cache == "static" else None,
        use_cache=True,
        disable_compile=True,
    )


def _pad_left(
    prompts: Sequence[Sequence[int]], padding: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return ids and mask [B, T], padded on the left."""
    longest = max(map(len, prompts))
    ids = [[padding] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
