"""Prompts: texts and messages of a chat to token ids."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from layermem_base.generation_settings import check_text

Messages: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt."""

    index: int
    """Its number, from 0, in the order in which prompts were given."""
    content: str | Messages
    """Its text, or the messages of a chat."""
    where: str
    """Where it was given, for errors."""
    ids: tuple[int, ...] = ()
    """Its tokens; none before ``encode_prompts``."""

    def __post_init__(self) -> None:
        content = self.content
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        check_text(text, self.where)


def prompts_of_texts(texts: Sequence[str], name: str = "prompt") -> list[Prompt]:
    """Return prompts that were given as texts."""
    return [Prompt(index=i, content=text, where=f"{name} {i + 1}") for i, text in enumerate(texts)]


class TextStart(NamedTuple):
    """How the texts began that a model was trained on."""

    added: bool = True
    """Whether with the tokens that the tokenizer puts before a text."""
    first: int | None = None
    """Id that stood before a text; None: there is none that the model has learnt."""


def encode_prompts(
    tokenizer: Any, prompts: Sequence[Prompt], *, chat: bool, start: TextStart | None = None
) -> list[Prompt]:
    """Return prompts with their tokens; refuse a text that the tokenizer has no tokens for.

    An end token that the tokenizer adds is left out. A prompt without any token begins with the
    first one of ``start``: by default the tokenizer's BOS token, or EOS where it has no BOS.
    """
    if chat and not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "the tokenizer has no chat template; leave --chat out, or set tokenizer.chat_template "
            "and save it"
        )
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    start = start or TextStart(first=eos if bos is None else bos)
    encoded = (
        _encode_chat(tokenizer, prompt) if chat else _encode_text(tokenizer, prompt, start)
        for prompt in prompts
    )
    return [replace(prompt, ids=tuple(ids)) for prompt, ids in zip(prompts, encoded, strict=True)]


def _encode_chat(tokenizer: Any, prompt: Prompt) -> list[int]:
    content = prompt.content
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    options = {"add_generation_prompt": True, "tokenize": False}
    try:
        text = tokenizer.apply_chat_template(messages, **options)
    except Exception as error:
        raise ValueError(f"{prompt.where} does not fit the chat template: {error}") from error
    return _encode_known(tokenizer, text, prompt.where)


def _encode_known(tokenizer: Any, text: str, where: str) -> list[int]:
    """Return the tokens of a text; raise if one of them stands for what has no token."""
    ids: list[int] = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown not in ids or tokenizer.unk_token in text:
        return ids
    before = tokenizer.decode(ids[: ids.index(unknown)])
    raise ValueError(
        f"{where}: the tokenizer has no token for what follows {before[-60:]!r}, in place of which "
        f"the model would read {tokenizer.unk_token}; leave it out or replace it"
    )


def _encode_text(tokenizer: Any, prompt: Prompt, start: TextStart) -> list[int]:
    if not isinstance(prompt.content, str):
        raise ValueError(f"{prompt.where} holds messages of a chat; add --chat")
    own = _encode_known(tokenizer, prompt.content, prompt.where)
    ids, end = own, tokenizer.eos_token_id
    if start.added:
        ids = list(tokenizer(prompt.content, verbose=False)["input_ids"])
        if len(ids) > len(own) and ids[-1] == end and own[-1:] != [end]:
            ids.pop()
    if ids:
        return ids
    if start.first is None:
        raise ValueError(
            f"{prompt.where} is empty, and there is no BOS or EOS token to begin with that the "
            "model has learnt; give it a text"
        )
    return [start.first]


def check_prompts(prompts: Sequence[Prompt], config: Any, max_new_tokens: int) -> None:
    """Raise if a prompt has tokens that a model has not, or is too long for it.

    ``config``: of the model's text, which need not say how long a sequence it reads.
    """
    longest = getattr(config, "max_position_embeddings", None)
    for prompt in prompts:
        if max(prompt.ids) >= config.vocab_size:
            raise ValueError(
                f"{prompt.where} has token {max(prompt.ids)}, and the model has embeddings of "
                f"{config.vocab_size}: the tokenizer is another model's"
            )
        if isinstance(longest, int) and 0 < longest < len(prompt.ids) + max_new_tokens:
            fit = max(longest - max_new_tokens, 0)
            raise ValueError(
                f"{prompt.where} has {len(prompt.ids)} tokens, of which {fit} fit: the model reads "
                f"{longest}, and --max-new-tokens asks for {max_new_tokens} more; ask for fewer"
            )
