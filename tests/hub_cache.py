"""A hub that cannot be reached, and models that were fetched from it before."""

from pathlib import Path

import huggingface_hub
import pytest


class HubCache:
    """A folder as the hub's client leaves it; ``push`` moves a branch, as a later fetch would."""

    def __init__(self, path):
        self.path = path

    def push(self, name, save, *, branch="main"):
        """Have ``save`` fill a new commit, let a branch stand for it, and return the commit."""
        repository = self.path / f"models--{name.replace('/', '--')}"
        snapshots = repository / "snapshots"
        snapshots.mkdir(parents=True, exist_ok=True)
        commit = f"{len(list(snapshots.iterdir())) + 1:040x}"
        save(snapshots / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / branch).write_text(commit)
        return commit

    def commit(self, name, branch="main"):
        return (self.path / f"models--{name.replace('/', '--')}" / "refs" / branch).read_text()


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(Path(tmp_path, "hub")))
    return HubCache(tmp_path / "hub")
