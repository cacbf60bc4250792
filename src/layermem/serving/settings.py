"""``GenerationSettings``: how prompts are continued, under transformers' names.

It does not know: torch, models, tokenizers.
"""

from dataclasses import dataclass
from typing import Literal

from layermem.data.documents import check_text

_OF_SAMPLING = ("temperature", "top_p", "top_k")


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How prompts are continued."""

    max_new_tokens: int = 128
    """Most tokens of a continuation."""
    do_sample: bool = False
    """Draw tokens at random; otherwise each is the most probable one, whatever the model's
    generation_config.json says."""
    temperature: float | None = None
    """With --do-sample: divides the logits; None: what generation_config.json says, else 1."""
    top_p: float | None = None
    """With --do-sample: draw from the fewest tokens of this probability together; None: what
    generation_config.json says, else all."""
    top_k: int | None = None
    """With --do-sample: draw from so many of the most probable tokens; None: what
    generation_config.json says, else all."""
    num_beams: int = 1
    """Beams of a beam search; 1: none."""
    repetition_penalty: float | None = None
    """Divides the scores of tokens that occurred; None: what generation_config.json says, or 1."""
    seed: int = 0
    """Seed of --do-sample. Each prompt has draws of its own, by this seed and its number."""
    stop: tuple[str, ...] = ()
    """Texts that end a continuation, which does not include them."""
    chat: bool = False
    """Take a prompt for a user's message, and write it as the tokenizer's chat template does."""
    batch_size: int = 16
    """Prompts continued at once, of about one length."""
    cache: Literal["dynamic", "static"] = "dynamic"
    """transformers' cache: one that grows, or one of a fixed size."""
    compile: bool = False
    """Compile the forward of one token; needs --cache static, and compiles for each batch size."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_beams", "batch_size", "top_k"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("temperature", "repetition_penalty"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a number above 0, got {value}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not all(self.stop):
            raise ValueError("a stop text must not be empty")
        for text in self.stop:
            check_text(text, "a stop text")
        self._check_together()

    def _check_together(self) -> None:
        """Raise where one setting would make another one without effect."""
        given = [name for name in _OF_SAMPLING if getattr(self, name) is not None]
        if given and not self.do_sample:
            raise ValueError(
                f"{', '.join(given)} change nothing unless tokens are drawn: add --do-sample, or "
                "leave them out"
            )
        if self.do_sample and self.num_beams > 1:
            raise ValueError(
                f"--do-sample and --num-beams {self.num_beams} together are not supported: draws "
                "of one prompt would depend on its batch; leave one of them out"
            )
        if self.compile and self.cache != "static":
            raise ValueError(
                "--compile needs --cache static: with a cache that grows, every token would be "
                "compiled anew"
            )
