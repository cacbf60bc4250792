"""`layermem models`: convert a checkpoint, generate text with one, show its card."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from layermem.cli.convert import Convert, convert
from layermem.cli.generate import Generate, generate
from layermem.cli.screen import screen


@dataclass(frozen=True, kw_only=True)
class AnyModels:
    """Work with checkpoints: convert, generate, card. Each has options of its own: layermem models
    convert --help."""

    action: tyro.conf.Positional[Literal["convert", "generate", "card"]]
    """convert: a checkpoint of another layout becomes a saved model; generate: text from a trained
    model; card: what a saved model says of itself."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Print the card of a saved model or of a run: what it is, how it is loaded, how it was trained
    and what was measured."""

    model: tyro.conf.Positional[Path]
    """Folder of a saved model, of saved routers, or of a run."""


def card(options: Card, command: str) -> None:
    """Print a card."""
    from layermem.models.card import CARD
    from layermem.runs import RunFolder

    final = RunFolder(options.model).final
    folder = final if final.exists() else options.model
    path = folder / CARD
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {CARD}; save_pretrained of a model of layermem, save_routers and "
            "runs write one"
        )
    screen().print(path.read_text(encoding="utf-8"), markup=False, highlight=False)


ACTIONS: dict[str, tuple[type[Any], Any]] = {
    "convert": (Convert, convert),
    "generate": (Generate, generate),
    "card": (Card, card),
}
"""Name of each action to its options and what it does."""


def parse(args: Sequence[str]) -> Any:
    """Return the options of an action, an instance of its dataclass."""
    if not args or args[0] not in ACTIONS:
        return tyro.cli(AnyModels, prog="layermem models", args=list(args))
    kind, _ = ACTIONS[args[0]]
    return tyro.cli(kind, prog=f"layermem models {args[0]}", args=list(args[1:]))


def models(options: Any, command: str) -> None:
    """Carry out an action."""
    dict(ACTIONS.values())[type(options)](options, command)
