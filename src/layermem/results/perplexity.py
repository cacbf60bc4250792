"""Perplexity of models on documents: loss, bits per byte, by position, document by document.

    PerplexityResult      perplexity.json: options, and of each model
      Perplexity            its losses
        PositionLoss          of tokens with so many tokens before them in their window
        DocumentLosses        document by document, by which models are compared
      PerplexityDifference  of each model but the first, against the first

It does not know: models, texts, how anything is computed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from layermem.number_ranges import at_least, number
from layermem.results.arms import Arms


@dataclass(frozen=True, kw_only=True)
class PositionLoss:
    """Loss of the tokens with from ``first`` to ``last`` tokens before them in their window."""

    first: int
    """Fewest tokens before them."""
    last: int
    """Most tokens before them."""
    tokens: int
    """Number of these tokens."""
    loss: float | None
    """Nats per token; None: there are no such tokens."""


@dataclass(frozen=True, kw_only=True)
class DocumentLosses:
    """Losses of the documents, in their order. One without a token to predict has zeros."""

    nats: tuple[float, ...]
    """Summed loss of each."""
    tokens: tuple[int, ...]
    """Tokens of each that were predicted."""
    bytes: tuple[int, ...]
    """Bytes (UTF-8) of the text of these tokens."""


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """What a model's losses on some documents are."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """Loss in bits, per byte of text: comparable between tokenizers."""
    tokens: int
    """Tokens that were predicted, each once."""
    bytes: int
    """Bytes (UTF-8) of their text."""
    context: int
    """Most tokens that one forward reads."""
    stride: int
    """Tokens by which windows of a long document are apart."""
    predecessor: int | None
    """Id that stands before each document; None: the tokenizer has none, and the first token of
    each document is not predicted."""
    unknown_tokens: int
    """Tokens among them that stand for text which the tokenizer has no tokens for."""
    positions: tuple[PositionLoss, ...]
    """Loss by the number of tokens before the predicted one in its window."""
    documents: DocumentLosses
    """Loss by document."""

    @property
    def perplexity(self) -> float:
        """Exponential of the loss; infinite where it is too large for a number."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


@dataclass(frozen=True, kw_only=True)
class PerplexityOptions:
    """What is read, and how."""

    texts: tuple[str, ...]
    """Files, folders or datasets."""
    field: str = "text"
    """Field of the text, in JSON lines and Parquet."""
    context: int | None = number(None, at_least(1))
    """Most tokens that one forward reads; None: of a run on text its block size, of another model
    its longest sequence, the smallest of all checkpoints."""
    stride: int | None = number(None, at_least(1))
    """Tokens by which windows of a long document are apart; None: half of the context."""
    max_documents: int | None = number(None, at_least(1))
    """Documents that are read; None: all."""
    batch_size: int | None = number(None, at_least(1))
    """Windows of a batch; None: as many as 128 MB of logits allow, at most 64."""


@dataclass(frozen=True, kw_only=True)
class PerplexityDifference:
    """A model against the first one, on the same documents."""

    bits_per_byte: float
    """Difference of bits per byte; below zero: this model is better."""
    bits_interval: tuple[float, ...]
    """Its 95% interval over documents."""
    loss: float | None
    """Difference of nats per token; None: the two have different tokens."""
    loss_interval: tuple[float, ...] | None
    """Its 95% interval over documents."""


@dataclass(frozen=True, kw_only=True)
class PerplexityResult:
    """Models on the same documents."""

    KIND: ClassVar[str] = "perplexity"
    VERSION: ClassVar[int] = 2
    COMMAND: ClassVar[str] = "layermem eval --tasks ppl=FILE"

    command: str
    """What made it."""
    options: PerplexityOptions
    """What was read, and how: with the context and the stride that were used."""
    models: Mapping[str, Perplexity]
    """Name of each model to its losses."""
    differences: Mapping[str, PerplexityDifference]
    """Name of each model but the first to its difference from the first."""
    arms: Arms = field(default_factory=dict)
    """Which models differ in the seed alone."""
