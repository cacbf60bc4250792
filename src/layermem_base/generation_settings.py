"""``GenerationSettings``: how prompts are continued; they are options of the command too."""

from dataclasses import dataclass
from typing import Literal

from layermem_base.number_ranges import above, at_least, between, check_numbers, number


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How prompts are continued, under transformers' names."""

    max_new_tokens: int = number(128, at_least(1))
    """Most tokens of a continuation."""
    do_sample: bool = False
    """Draw tokens at random; otherwise each is the most probable one, whatever the model's
    generation_config.json says."""
    temperature: float | None = number(None, above(0))
    """With --do-sample: divides the logits; None: what generation_config.json says, else 1."""
    top_p: float | None = number(None, between(0, 1))
    """With --do-sample: draw from the fewest tokens of this probability together; None: what
    generation_config.json says, else all."""
    top_k: int | None = number(None, at_least(1))
    """With --do-sample: draw from so many of the most probable tokens; None: what
    generation_config.json says, else all."""
    num_beams: int = number(1, at_least(1))
    """Beams of a beam search; 1: none."""
    repetition_penalty: float | None = number(None, above(0))
    """Divides the scores of tokens that occurred; None: what generation_config.json says, or 1."""
    seed: int = number(0, at_least(0))
    """Seed of --do-sample. Each prompt has draws of its own, by this seed and its number."""
    stop: tuple[str, ...] = ()
    """Texts that end a continuation, which does not include them."""
    chat: bool = False
    """Take a prompt for a user's message, and write it as the tokenizer's chat template does."""
    batch_size: int = number(16, at_least(1))
    """Prompts continued at once, of about one length."""
    cache: Literal["dynamic", "static"] = "dynamic"
    """transformers' cache: one that grows, or one of a fixed size."""

    def __post_init__(self) -> None:
        check_numbers(self)
        for text in self.stop:
            if not text:
                raise ValueError("a stop text must not be empty")
            check_text(text, "a stop text")
        for name in ("temperature", "top_p", "top_k"):
            if getattr(self, name) is not None and not self.do_sample:
                raise ValueError(f"{name} changes nothing without --do-sample: add it")
        if self.do_sample and self.num_beams > 1:
            raise ValueError("--do-sample and --num-beams together are not supported: choose one")


def check_text(text: str, name: str) -> None:
    """Raise, calling the text ``name``, if it has no UTF-8: tokenizers read nothing else.

    JSON can hold half a surrogate pair; in an argument one stands for a byte that is not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        part = f"{text[error.start]!a}, at character {error.start}"
        raise ValueError(f"{name} holds half a surrogate pair, {part}: correct it") from error
