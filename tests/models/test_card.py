"""The model card that ``save_pretrained`` writes."""

import re

import pytest
import torch
from huggingface_hub import ModelCard
from tiny import TINY, make
from transformers import LlamaConfig, LlamaForCausalLM

import layermem
from layermem.models.card import state_licence
from layermem.models.registry import lookup

KINDS = ["causal_lm", "decoder", "sequence_classification"]


def loaded(card, folder):
    """Run the code of a card; return its model."""
    (code,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    space = {}
    exec(compile(code.replace("this-folder", str(folder)), "card", "exec"), space)
    return space["model"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_has_a_card_that_loads_it(kind, tmp_path, ids):
    entry = lookup("lime")
    model = make(getattr(entry, kind), entry.config(**TINY, pad_token_id=0))
    model.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "layermem" and "lime" in card.data.tags
    assert card.data.license is None
    count = re.search(r"([\d,]+) parameters", card.text)[1]
    assert int(count.replace(",", "")) == sum(p.numel() for p in model.parameters())
    assert f"{TINY['num_hidden_layers']} layers of width {TINY['hidden_size']}" in card.text
    again = loaded(card, tmp_path)
    assert type(again) is type(model)
    with torch.no_grad():
        assert torch.equal(again(ids)[0], model(ids)[0])


def test_an_attached_model_has_one_too(tmp_path, ids):
    torch.manual_seed(0)
    model = layermem.attach(LlamaForCausalLM(LlamaConfig(**TINY)).eval(), "last", 2)
    model.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert "layer-memory" in card.data.tags and "(last, window 2)" in card.text
    with torch.no_grad():
        assert torch.equal(loaded(card, tmp_path)(ids).logits, model(ids).logits)


def test_a_licence_is_read_from_the_metadata_alone(tmp_path):
    for text in ("license: mit\n", "---\ntags: [x]\n---\n\nAdd to the metadata:\nlicense: mit\n"):
        (tmp_path / "README.md").write_text(text)
        assert "whose licence is not known here" in state_licence(str(tmp_path))


def test_a_card_says_what_the_model_was_made_from(tmp_path):
    host = LlamaForCausalLM(LlamaConfig(**TINY))
    host.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "README.md").write_text("---\ntags: [x]\nlicense: mit\n---\n\n# A base\n")
    layermem.attach(LlamaForCausalLM.from_pretrained(tmp_path / "base")).save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "\n# base with layer memory\n" in text
    assert "made from `base` (A base), which has the licence mit." in text
    assert ModelCard(text).data.license is None and "base_model" not in text
    layermem.LimeForCausalLM.from_llama(tmp_path / "base").save_pretrained(tmp_path / "lime")
    text = (tmp_path / "lime" / "README.md").read_text()
    assert "\n# lime language model\n" in text and "`base` (A base)" in text
    # One of the hub is named in the metadata; nothing is downloaded.
    host.config.name_or_path = "org/some-model"
    layermem.attach(host).save_pretrained(tmp_path / "of-the-hub")
    text = (tmp_path / "of-the-hub" / "README.md").read_text()
    assert ModelCard(text).data.base_model == "org/some-model"
    assert "from `org/some-model`, whose licence is not known here" in text
    # A model of new weights was made from none.
    layermem.build("lime", **TINY).save_pretrained(tmp_path / "new")
    assert "made from" not in (tmp_path / "new" / "README.md").read_text()


def test_a_card_is_that_of_the_model_saved_last(tmp_path):
    for name in ("plain", "lime"):
        layermem.build(name, **TINY).save_pretrained(tmp_path)
        text = (tmp_path / "README.md").read_text()
        assert f"variant `{name}`" in text
    licensed = text.replace("library_name", "license: mit\nlibrary_name")
    (tmp_path / "README.md").write_text(licensed)
    layermem.build("plain", **TINY).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == licensed


def test_a_card_of_ones_own_stays(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    model = layermem.build("lime", **TINY)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    model.save_pretrained(tmp_path / "others", is_main_process=False)
    assert not (tmp_path / "others" / "README.md").exists()
