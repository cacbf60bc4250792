"""The LLaMA of 260,032 parameters that llama2.c publishes, where its files (stories260K) are."""

import pytest
from forked import run_script
from scripts import ROOT

STORIES = ROOT.parent / "shared" / "data" / "checkpoints" / "stories260K" / "stories260K.bin"
TOKENIZER = STORIES.with_name("tok512.bin")
needs_stories = pytest.mark.skipif(
    not STORIES.is_file(), reason="the checkpoint stories260K is not on this machine"
)


def stories(target):
    """Write it as a folder of transformers, by the example."""
    options = [str(STORIES), str(target), "--tokenizer", str(TOKENIZER)]
    status, *said = run_script(ROOT / "examples" / "llama2c.py", options, folder=target.parent)
    assert status == 0, said
