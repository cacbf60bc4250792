"""What several tests of data start from."""

import json

import pytest

from layermem_bench.data import pieces


@pytest.fixture
def text(tmp_path, monkeypatch):
    """Return a file of several pieces."""
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"document {i} " * (i % 30)} for i in range(2000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(pieces, "SMALLEST", 50_000)
    return path
