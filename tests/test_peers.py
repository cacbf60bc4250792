"""What benchmarks compare our models with: it computes the same numbers, or it is refused."""

import pytest
import torch
from scripts import ROOT, load_script
from tiny import TINY, make

import layermem
from layermem import LimeConfig, LimeForCausalLM
from layermem_bench.config.run import Model
from layermem_bench.studies.boards import parse_arms

concatenating, loops = (
    load_script(f"benchmarks/{name}.py") for name in ("concatenating", "eager_loops")
)
IDS = torch.arange(14).view(2, 7) % TINY["vocab_size"]
# Parameters of LIMe whose change is noticed.
WRONG = pytest.mark.parametrize(
    "wrong", ["layers.1.self_attn.memory.weight", "layers.3.mlp.down_proj"]
)


def arms():
    """Return the arms that benchmarks measure beside loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        measure = load_script("benchmarks/measure.py")
    return measure.WITH_LOOPS.split(",")


def build(arm):
    (variant, options), *_ = parse_arms(arm).values()
    torch.manual_seed(0)
    model = layermem.build(variant, **TINY, **Model(options=options).variant_fields())
    # What begins as the plain decoder would hide what a loop leaves out.
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.double()


@pytest.mark.parametrize("arm", arms())
def test_a_loop_computes_what_its_variant_computes(arm):
    model = build(arm)
    loops.check_same(model, loops.EagerLoop(model), IDS, 1e-7)


@WRONG
def test_a_loop_that_computes_something_else_is_refused(wrong):
    model, other = build("lime"), build("lime")
    next(p for name, p in other.named_parameters() if wrong in name).data += 0.1
    with pytest.raises(ValueError, match="logits"):
        loops.check_same(model, loops.EagerLoop(other), IDS)


@pytest.mark.parametrize("arm", ["value_residual:form=dense", "cla+mudd"])
def test_a_form_without_a_loop_is_refused(arm):
    with pytest.raises(ValueError, match="eager loop"):
        loops.EagerLoop(build(arm))(IDS)


@pytest.fixture(params=[2, 4], ids=["gqa", "mha"])
def fields(request):
    return {**TINY, "num_key_value_heads": request.param, "max_position_embeddings": 128}


def test_concatenating_computes_what_lime_computes(fields):
    lime = make(LimeForCausalLM, LimeConfig(**fields))
    peer = concatenating.build_concatenating(fields, lime)
    buffers = []
    peer.model.layers[2].self_attn.memory.register_forward_pre_hook(
        lambda _, args: buffers.append(args[0].rows.shape)
    )
    peer(torch.ones(2, 5, dtype=torch.long), use_cache=False)
    assert buffers == [(3 * fields["num_key_value_heads"], 2 * 2 * 5 * 8)]


@WRONG
def test_a_difference_is_an_error(fields, wrong):
    lime = make(LimeForCausalLM, LimeConfig(**fields))
    peer = concatenating.build_concatenating(fields, lime)
    parameter = next(p for name, p in peer.named_parameters() if wrong in name)
    with torch.no_grad():
        parameter[-1, 0] += 0.1
    with pytest.raises(ValueError, match="logits"):
        concatenating.check_same(peer, lime)
