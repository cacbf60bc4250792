"""Variants by name."""

import pickle
import sys

import pytest
from tiny import TINY

import layermem
from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare, lookup
from layermem.models.seams import Variant


def test_build_gives_a_causal_lm():
    assert {"lime", "plain"} <= set(layermem.list_variants())
    assert type(layermem.build("lime", **TINY)) is layermem.LimeForCausalLM
    assert type(layermem.build("plain", **TINY)) is layermem.PlainForCausalLM


def test_unknown_names_are_named():
    with pytest.raises(ValueError, match=r"'lme'; did you mean lime\? .*--plugin MODULE"):
        layermem.build("lme")
    with pytest.raises(ValueError, match=r"'nothing'; there are .*lime.*plain.* pairs A\+B"):
        layermem.build("nothing")
    with pytest.raises(TypeError, match=r"'hidden_sise'; did you mean hidden_size\?"):
        layermem.build("lime", hidden_sise=3)
    with pytest.raises(TypeError, match="'router'"):
        layermem.build("plain", router="full")


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="'lime' is already registered"):
        declare("lime", layermem.LimeConfig, lookup("lime").variant)


def test_a_declaration_takes_its_names_from_the_config():
    with pytest.raises(ValueError, match="must end with Config, got DecoderConfiguration"):
        declare("other", type("DecoderConfiguration", (DecoderConfig,), {}), Variant)


@pytest.mark.parametrize("name", layermem.list_variants())
def test_declared_classes_are_found_where_their_config_is(name):
    entry = lookup(name)
    module = sys.modules[entry.config.__module__]
    for cls in (entry.decoder, entry.causal_lm, entry.sequence_classification):
        assert getattr(module, cls.__name__) is cls is pickle.loads(pickle.dumps(cls))
        assert cls.config_class is entry.config and cls.variant is entry.variant
        assert cls.__doc__ and cls.__name__.startswith(entry.config.__name__[: -len("Config")])
    assert entry.config.model_type == f"layermem_{name}"
