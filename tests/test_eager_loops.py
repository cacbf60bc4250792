"""The eager loops that benchmarks compare each variant with: they compute the same numbers."""

import sys
from pathlib import Path

import pytest
import torch
from tiny import TINY

import layermem
from layermem_bench.config.run import Model
from layermem_bench.study.boards import parse_arms

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def loops():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import eager_loops

        yield eager_loops
    sys.modules.pop("eager_loops", None)


def arms():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        from measure import FAMILY, WITH_LOOPS
    return list(dict.fromkeys([*FAMILY.split(","), *WITH_LOOPS.split(",")]))


def build(arm, **fields):
    (variant, options), *_ = parse_arms(arm).values()
    torch.manual_seed(0)
    model = layermem.build(variant, **TINY, **Model(options=options).variant_fields(), **fields)
    # What begins as the plain decoder would hide what a loop leaves out.
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.double()


@pytest.mark.parametrize("arm", arms())
def test_a_loop_computes_what_its_variant_computes(loops, arm):
    model = build(arm)
    loops.check_same(model, loops.EagerLoop(model), torch.arange(14).view(2, 7) % 61, 1e-7)


@pytest.mark.parametrize("wrong", ["layers.1.self_attn.memory.weight", "layers.3.mlp.down_proj"])
def test_a_loop_that_computes_something_else_is_refused(loops, wrong):
    model, other = build("lime"), build("lime")
    next(p for name, p in other.named_parameters() if wrong in name).data += 0.1
    with pytest.raises(ValueError, match="differs from its model in logits"):
        loops.check_same(model, loops.EagerLoop(other), torch.arange(14).view(2, 7))


@pytest.mark.parametrize(
    "arm",
    [
        "value_residual:form=dense",
        "depth_attention:stride=2",
        "lime_hidden:gate=true",
        "denseformer:period=2",
        "cla+mudd",
    ],
)
def test_a_form_without_a_loop_is_refused(loops, arm):
    model = build(arm)
    with pytest.raises(ValueError, match="eager loop"):
        loops.EagerLoop(model)(torch.arange(14).view(2, 7))
