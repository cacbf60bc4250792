"""Literal transcriptions: the equations of every variant as loops, to compare the models with.

``literal/NAME.py`` belongs to the variant NAME and has

    logits(model, ids)    the logits of a causal LM, computed from its weights by the equations as
                          the paper prints them: one token, head or layer at a time, and no module
                          of the variant called
    CASES                 {id: fields}: further forms that the contract tests, beside the default
    PLAIN                 further fields, beside the variant's ``plain_fields``, with which it
                          computes what the plain decoder does

A pair (``lime+hyper_connections``) needs no file: the variant of the memory has

    read(layer, query, slots)    the key and value to attend to, from the slots of all layers so far

and ``logits`` of the variant of the stream takes that function as ``memory``.
"""

import importlib.util
from functools import partial
from types import ModuleType


def find(name: str) -> ModuleType | None:
    """Return the transcription of a variant or of a pair, None if it has none."""
    if "+" in name:
        memory, stream = map(find, name.split("+"))
        pair = ModuleType(name)
        pair.logits = partial(stream.logits, memory=memory.read)
        return pair
    if importlib.util.find_spec(f"literal.{name}") is None:
        return None
    return importlib.import_module(f"literal.{name}")


def cases(name: str) -> dict[str, dict]:
    """Return the further forms of a variant."""
    return getattr(find(name), "CASES", {})


def plain_settings(name: str) -> list[dict]:
    """Return the further identity settings of a variant."""
    return getattr(find(name), "PLAIN", [])
