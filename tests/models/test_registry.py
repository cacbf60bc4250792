"""Variants by name."""

import pytest
from tiny import TINY

import layermem
from layermem.models.registry import lookup, register


def test_build_gives_a_causal_lm():
    assert {"lime", "plain"} <= set(layermem.variants())
    assert type(layermem.build("lime", **TINY)) is layermem.LimeForCausalLM
    assert type(layermem.build("plain", **TINY)) is layermem.PlainForCausalLM


def test_unknown_names_are_named():
    with pytest.raises(ValueError, match=r"'lme'; there are .*lime.*plain"):
        layermem.build("lme")
    with pytest.raises(TypeError, match=r"'hidden_sise'; did you mean hidden_size\?"):
        layermem.build("lime", hidden_sise=3)
    with pytest.raises(TypeError, match="'router'"):
        layermem.build("plain", router="full")


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="'lime' is registered already"):
        register("lime", lookup("lime"))


def test_the_attention_implementation_is_chosen():
    model = layermem.build("lime", **TINY, attn_implementation="eager")
    assert model.config._attn_implementation == "eager"
