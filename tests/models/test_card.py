"""The model card that ``save_pretrained`` writes."""

import re

import pytest
import torch
from huggingface_hub import ModelCard
from tiny import TINY, make
from transformers import LlamaConfig, LlamaForCausalLM

import layermem
from layermem.models.registry import lookup


def loaded(card, folder):
    """Run the code of a card; return its model."""
    (code,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    space = {}
    exec(compile(code.replace("this-folder", str(folder)), "card", "exec"), space)
    return space["model"]


@pytest.mark.parametrize("kind", ["causal_lm", "decoder", "sequence_classification"])
def test_a_saved_model_has_a_card_that_loads_it(kind, tmp_path, ids):
    entry = lookup("lime")
    model = make(getattr(entry, kind), entry.config(**TINY, pad_token_id=0))
    model.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "layermem" and card.data.license is None
    assert "lime" in card.data.tags
    count = re.search(r"([\d,]+) parameters", card.text)[1]
    assert int(count.replace(",", "")) == sum(p.numel() for p in model.parameters())
    again = loaded(card, tmp_path)
    assert type(again) is type(model)
    with torch.no_grad():
        assert torch.equal(again(ids)[0], model(ids)[0])


def test_a_card_says_what_the_model_was_made_from(tmp_path):
    host = LlamaForCausalLM(LlamaConfig(**TINY))
    host.save_pretrained(tmp_path / "base")
    layermem.LimeForCausalLM.from_llama(tmp_path / "base").save_pretrained(tmp_path / "lime")
    text = (tmp_path / "lime" / "README.md").read_text()
    assert (
        "the licence of base allow" in text
        and "base_model" not in text
        and str(tmp_path) not in text
    )


def test_a_card_is_that_of_the_model_saved_last_unless_somebody_wrote_it(tmp_path):
    path = tmp_path / "README.md"
    for name in ("plain", "lime"):
        layermem.build(name, **TINY).save_pretrained(tmp_path)
        text = path.read_text()
        assert f"variant `{name}`" in text and "licence of" not in text
    for own in (text.replace("library_name", "license: mit\nlibrary_name"), "mine"):
        path.write_text(own)
        layermem.build("plain", **TINY).save_pretrained(tmp_path)
        assert path.read_text() == own
    layermem.build("plain", **TINY).save_pretrained(tmp_path / "other", is_main_process=False)
    assert not (tmp_path / "other" / "README.md").exists()
