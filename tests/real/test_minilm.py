"""MiniLM, a BERT of 6 layers, with layer memory: embeddings of sentences, labels."""

import json
import re
from pathlib import Path

import pytest
import torch
from forked import run_script
from host_models import shake_routers
from transformers import AutoModel, AutoTokenizer

import layermem

pytestmark = pytest.mark.real
SENTENCES = [
    "A cat sits on the mat.",
    "A kitten is sitting on a rug.",
    "The bank raised its rates.",
]


@pytest.fixture(scope="module")
def model(minilm_folder):
    return AutoModel.from_pretrained(minilm_folder)


@torch.no_grad()
def embed(model, folder):
    """Return an embedding of each sentence, as the card says."""
    inputs = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    mask = inputs["attention_mask"].unsqueeze(-1)
    states = model(**inputs).last_hidden_state
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def test_embeddings_are_those_of_before(model, minilm_folder):
    before = embed(model, minilm_folder)
    near, far = before[0] @ before[1], before[0] @ before[2]
    assert near > 0.5 > 0.2 > far
    layermem.attach(model)
    assert torch.equal(embed(model, minilm_folder), before)
    shake_routers(model)
    assert (embed(model, minilm_folder) - before).abs().max() > 1e-3
    layermem.detach(model)
    assert torch.equal(embed(model, minilm_folder), before)


GOOD = ["wonderful", "a delight", "great fun", "moving", "brilliant", "charming", "superb", "fine"]
BAD = ["dreadful", "a bore", "a mess", "painful", "awful", "tedious", "a failure", "poor"]
ABOUT = ["The film was", "I found the play", "Her new book is", "The meal was", "This game is"]


def test_it_learns_labels(minilm_folder, tmp_path):
    """The sentiment of sentences whose words of praise and blame were not all seen."""
    for name, half in (("train", slice(0, 6)), ("valid", slice(6, 8))):
        rows = [
            {"text": f"{about} {word}.", "label": label}
            for label, words in (("good", GOOD[half]), ("bad", BAD[half]))
            for word in words
            for about in ABOUT
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    options = ["--data=train.jsonl", "--validation=valid.jsonl", "--steps=24", "--lr=5e-5"]
    script = Path(__file__).parents[2] / "examples" / "encoders.py"
    options += [f"--model={minilm_folder}", "--out=run"]
    status, output, errors = run_script(script, options, folder=tmp_path)
    assert status == 0, errors
    # A guess is right in half of the 20.
    assert float(re.search(r"\nwith memory: accuracy (\S+)", output)[1]) >= 0.8
