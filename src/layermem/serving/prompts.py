"""Prompts: from texts or a file of JSON lines to token ids, and those that cannot be continued."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from layermem.data.records import check_text, json_lines

Messages: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class RawPrompt:
    """A prompt as it was given."""

    content: str | Messages
    """Its text, or the messages of a chat."""
    where: str
    """Where it was given, for errors."""

    def __post_init__(self) -> None:
        content = self.content
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        check_text(text, self.where)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as a model reads it."""

    index: int
    """Its number, from 0, in the order in which prompts were given."""
    content: str | Messages
    """As it was given."""
    ids: tuple[int, ...]
    """Its tokens."""
    where: str
    """Where it was given, for errors."""


def prompts_of_texts(texts: Sequence[str], name: str = "prompt") -> list[RawPrompt]:
    """Return prompts that were given as texts."""
    return [RawPrompt(content=text, where=f"{name} {i}") for i, text in enumerate(texts, 1)]


def read_prompts(path: Path, field: str) -> list[RawPrompt]:
    """Return the prompts of a file of JSON lines, in the field of that name of each line.

    The field holds a text, or a list of messages: {"role": ..., "content": ...}.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; --prompts names a file of JSON lines")
    prompts = []
    for record in json_lines(path):
        content: str | Messages
        if isinstance(record.fields.get(field), list):
            content = _messages(record.fields[field], record.where, field)
        else:
            content = record.document(field)
        prompts.append(RawPrompt(content=content, where=record.where))
    if not prompts:
        raise ValueError(f"{path} holds no prompt: it is empty")
    return prompts


def encode_prompts(tokenizer: Any, prompts: Sequence[RawPrompt], *, chat: bool) -> list[Prompt]:
    """Return prompts with their tokens.

    An end token that the tokenizer adds is left out. A prompt without any token begins with the
    tokenizer's BOS token, or EOS where it has no BOS.
    """
    if chat and not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "the tokenizer has no chat template; leave --chat out, or set tokenizer.chat_template "
            "and save it"
        )
    encode = _encode_chat if chat else _encode_text
    return [
        Prompt(
            index=i,
            content=prompt.content,
            ids=tuple(encode(tokenizer, prompt)),
            where=prompt.where,
        )
        for i, prompt in enumerate(prompts)
    ]


def check_prompts(
    prompts: Sequence[Prompt], *, longest: int | None, vocabulary: int, max_new_tokens: int
) -> None:
    """Raise if a prompt and its continuation are longer than the model's longest sequence.

    ``longest`` None: the model does not say. Ids outside of the ``vocabulary`` are refused too.
    """
    for prompt in prompts:
        if max(prompt.ids) >= vocabulary:
            raise ValueError(
                f"{prompt.where} has token {max(prompt.ids)}, and the model has embeddings of "
                f"{vocabulary}: the tokenizer is another model's"
            )
        if longest is not None and len(prompt.ids) + max_new_tokens > longest:
            fits = longest - max_new_tokens
            raise ValueError(
                f"{prompt.where} has {len(prompt.ids)} tokens, of which {max(fits, 0)} fit: the "
                f"model reads {longest}, and --max-new-tokens asks for {max_new_tokens} more; "
                "shorten the prompt or ask for fewer"
            )


def digest(prompts: Sequence[Prompt]) -> str:
    """Return a text that changes when any prompt or its tokens do."""
    summed = hashlib.sha256()
    for prompt in prompts:
        summed.update(json.dumps([prompt.content, prompt.ids]).encode())
    return summed.hexdigest()


def _messages(value: list[Any], where: str, field: str) -> Messages:
    for message in value:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ValueError(
                f"{where}: the field {field!r} must be a text or messages with role and content, "
                f"got {message!r:.60}"
            )
    if not value:
        raise ValueError(f"{where}: the field {field!r} has no message")
    return value


def _encode_chat(tokenizer: Any, prompt: RawPrompt) -> list[int]:
    content = prompt.content
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    try:
        return list(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )
    except Exception as error:
        raise ValueError(f"{prompt.where} does not fit the chat template: {error}") from error


def _encode_text(tokenizer: Any, prompt: RawPrompt) -> list[int]:
    if not isinstance(prompt.content, str):
        raise ValueError(f"{prompt.where} holds messages of a chat; add --chat")
    ids = list(tokenizer(prompt.content, verbose=False)["input_ids"])
    own = tokenizer(prompt.content, add_special_tokens=False, verbose=False)["input_ids"]
    end = tokenizer.eos_token_id
    if len(ids) > len(own) and ids[-1] == end and list(own[-1:]) != [end]:
        ids.pop()
    if ids:
        return ids
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else end
    if start is None:
        raise ValueError(
            f"{prompt.where} is empty, and the tokenizer has no BOS or EOS token to begin with; "
            "give it a text"
        )
    return [start]
