"""Where a continuation ends, and its text; what may be shown of one that goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["eos", "stop", "length"]
# Tokens of the prompt before a continuation: some tokenizers write a word differently at the start.
_TAIL = 8
# Stands for bytes that are no character yet.
_HALF = "\N{REPLACEMENT CHARACTER}"


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
            starts = (text.index(stop) for stop in self.stop if stop in text)
            text = text[: min(starts, default=len(text))]
        return Continuation(text=text, tokens=len(ids), reason=reason)

    def shown(self, text: str) -> str:
        """Return the part of a text that later tokens cannot take back."""
        held = len(text) - len(text.rstrip(_HALF))
        for stop in self.stop:
            if stop in text:
                return text[: text.index(stop)]
            ends = (n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
            held = max(held, next(ends, 0))
        return text[: len(text) - held]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


class TextStream:
    """Writes a continuation while it is generated; transformers calls ``put`` and ``end``."""

    def __init__(
        self, decoder: Decoder, prompt: Sequence[int], write: Callable[[str], None]
    ) -> None:
        self.decoder, self.prompt, self.write = decoder, prompt, write
        self.ids: list[int] = []
        self.written = 0
        self._has_prompt = False

    def put(self, value: Any) -> None:
        """Take the prompt at the first call, and one token at each other."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        self.ids += [token for token in value.flatten().tolist() if token not in self.decoder.ends]
        self._write_to(self.decoder.shown(self.decoder.text(self.prompt, self.ids)))

    def end(self) -> None:
        """Write what was held back."""
        self._write_to(self.decoder.cut(self.prompt, self.ids).text)

    def _write_to(self, text: str) -> None:
        self.write(text[self.written :])
        self.written = max(self.written, len(text))
