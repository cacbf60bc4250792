"""The config refuses what makes no decoder, and names it."""

import inspect
import re

import pytest
import torch
from tiny import TINY
from transformers import PreTrainedConfig, PreTrainedModel

from layermem import LimeConfig, PlainConfig, build


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_attention_heads", 5), ("num_key_value_heads", 3), ("num_attention_heads", 0)),
        *(("num_hidden_layers", 0), ("num_hidden_layers", "4"), ("head_dim", 7)),
        *(("initializer_range", 2.0), ("attention_dropout", 1.5), ("dtype", "flot16")),
        ("dtype", "int8"),
    ],
)
def test_bad_fields_are_named(name, value):
    # Some are errors of types of huggingface_hub's.
    with pytest.raises(Exception, match=rf"(?s){name}.*{value}"):
        PlainConfig(**{**TINY, name: value})


@pytest.mark.parametrize(
    "name", ["moe_intermediate_size", "v_head_dim", "eoh_token_id", "pretraining_tp", "max_length"]
)
def test_fields_of_others_are_kept(name):
    assert LimeConfig(**TINY, **{name: 3}).num_hidden_layers == TINY["num_hidden_layers"]


def test_fields_left_out_are_filled_in():
    config = LimeConfig(**{**TINY, "num_key_value_heads": None, "attention_dropout": None})
    assert config.attention_dropout == 0.0
    assert (config.num_key_value_heads, config.head_dim) == (4, 8)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}


def test_dtype_is_understood():
    assert build("lime", **TINY, dtype="bfloat16").dtype == torch.bfloat16
    assert build("lime", **TINY).dtype == torch.float32


def test_a_config_alone_is_saved_and_loaded(tmp_path):
    config = LimeConfig(**TINY, router="first", router_window=2)
    config.save_pretrained(tmp_path)
    loaded = LimeConfig.from_pretrained(tmp_path)
    assert (loaded.router, loaded.router_window) == ("first", 2)
    assert not config.auto_map and not loaded.auto_map
    assert "auto_map" not in config.to_dict()
    assert LimeConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


def test_a_config_is_shown_without_its_lineage_and_saved_with_it(tmp_path):
    config = LimeConfig(**TINY, layermem_lineage={"stages": [{"documents": "hashes"}]})
    assert '"model_type": "layermem_lime"' in repr(config) and "hashes" not in repr(config)
    config.save_pretrained(tmp_path)
    loaded = LimeConfig.from_pretrained(tmp_path)
    assert loaded.layermem_lineage == config.layermem_lineage


def test_no_attribute_of_a_config_takes_a_keyword_of_loading(entry):
    """transformers puts a keyword that a config has an attribute for into the config."""
    load = inspect.unwrap(PreTrainedModel.from_pretrained.__func__)
    keywords = {*inspect.signature(load).parameters}
    keywords |= {*re.findall(r'kwargs\.pop\("(\w+)"', inspect.getsource(load))}
    assert {"variant", "subfolder", "config"} <= keywords
    assert not keywords & ({*dir(entry.config)} - {*dir(PreTrainedConfig)})
