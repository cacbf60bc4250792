"""The LLaMA of 260,032 parameters that llama2.c publishes, where its files (stories260K) are."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "checkpoints" / "stories260K"
STORIES = FOLDER / "stories260K.bin"
needs_stories = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the checkpoint stories260K is not on this machine"
)
