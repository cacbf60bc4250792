"""The peer that benchmarks compare LIMe with: it computes the same numbers, or it is refused."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny import TINY, make

from layermem import LimeConfig, LimeForCausalLM

PATH = Path(__file__).parents[1] / "benchmarks" / "concatenating.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("concatenating", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=[2, 4], ids=["gqa", "mha"])
def fields(request):
    return {**TINY, "num_key_value_heads": request.param, "max_position_embeddings": 128}


def test_it_computes_what_lime_computes(peers, fields):
    lime = make(LimeForCausalLM, LimeConfig(**fields))
    peer = peers.build_concatenating(fields, lime)
    assert all(parameter.grad is None for parameter in lime.parameters())
    buffers = []
    peer.model.layers[2].self_attn.memory.register_forward_pre_hook(
        lambda _, args: buffers.append(args[0].rows.shape)
    )
    peer(torch.ones(2, 5, dtype=torch.long), use_cache=False)
    assert buffers == [(3 * fields["num_key_value_heads"], 2 * 2 * 5 * 8)]


@pytest.mark.parametrize("wrong", ["layers.1.self_attn.memory.weight", "layers.3.mlp.down_proj"])
def test_a_difference_is_an_error(peers, fields, wrong):
    lime = make(LimeForCausalLM, LimeConfig(**fields))
    peer = peers.build_concatenating(fields, lime)
    parameter = next(p for name, p in peer.named_parameters() if wrong in name)
    with torch.no_grad():
        parameter[-1, 0] += 0.1
    with pytest.raises(ValueError, match="the two forms of LIMe differ in logits"):
        peers.check_same(peer, lime)
