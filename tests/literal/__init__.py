"""Literal transcriptions: the equations of every variant as loops, to compare the models with.

``literal/NAME.py`` belongs to the variant NAME and has

    logits(model, ids)    the logits of a causal LM, computed from its weights by the equations as
                          the paper prints them: one token, head or layer at a time, and no module
                          of the variant called
    CASES                 {id: fields}: further forms that the contract tests, beside the default
    PLAIN                 further fields, beside the variant's ``plain_fields``, with which it
                          computes what the plain decoder does
"""

import importlib.util
from types import ModuleType


def find(name: str) -> ModuleType | None:
    """Return the transcription of a variant, None if it has none."""
    if importlib.util.find_spec(f"literal.{name}") is None:
        return None
    return importlib.import_module(f"literal.{name}")


def cases(name: str) -> dict[str, dict]:
    """Return the further forms of a variant."""
    return getattr(find(name), "CASES", {})


def plain_settings(name: str) -> list[dict]:
    """Return the further identity settings of a variant."""
    return getattr(find(name), "PLAIN", [])
