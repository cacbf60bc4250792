"""The memories a forward calls: with PEFT's adapters, those of the adapter in use, each once."""

import copy
import re

import numpy as np
import pytest
import torch
from tiny import TINY, make

from layermem import LimeConfig, LimeForCausalLM
from layermem.models.lime_router import LimeRouter
from layermem.models.memories import active_memories, unadapted_memories
from layermem.models.seams import WeightsUnknown
from layermem.variants.lime import Lime
from layermem_bench.analysis.capture import capture
from layermem_bench.analysis.routing import head_heatmaps, mean_heatmap
from layermem_bench.config.run import Optim
from layermem_bench.run.optimizer import parameter_groups

peft = pytest.importorskip("peft")


def config(**fields):
    """As docs/training.md has it: small matrices beside q and v, and the routers whole."""
    given = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["memory"], **fields}
    return peft.LoraConfig(task_type="CAUSAL_LM", r=2, **given)


def trained(adapted, ids, steps=2):
    """Take some steps of whatever requires gradients."""
    wanted = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(wanted, lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        adapted(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
    return adapted.eval()


@pytest.fixture
def base():
    """A model whose own-layer blocks are as they start."""
    torch.manual_seed(0)
    return LimeForCausalLM(LimeConfig(**TINY)).eval()


@pytest.fixture
def adapted(base, ids):
    return trained(peft.get_peft_model(copy.deepcopy(base), config()), ids)


def test_one_memory_a_layer_in_order():
    model = make(LimeForCausalLM, LimeConfig(**TINY))
    expected = [layer.self_attn.memory for layer in model.model.layers]
    assert active_memories(model) == unadapted_memories(model) == expected
    assert active_memories(model.model.layers[2]) == expected[2:3]
    assert active_memories(torch.nn.Linear(2, 2)) == []


def test_the_memories_are_those_that_a_forward_calls(base, adapted, ids):
    """Several adapters, with routers and without, switched on, off and merged."""
    adapted.add_adapter("other", config())
    adapted.add_adapter("bare", config(modules_to_save=None))

    def called():
        seen = []
        hooks = [
            module.register_forward_hook(lambda m, *_: seen.append(m))
            for module in adapted.modules()
            if isinstance(module, LimeRouter)
        ]
        with torch.no_grad():
            adapted(input_ids=ids)
        for hook in hooks:
            hook.remove()
        return seen

    for name in ("default", "other", "bare"):
        adapted.set_adapter(name)
        assert len(called()) == 3
        assert active_memories(adapted)[1:] == called()
    assert active_memories(adapted) == active_memories(adapted.get_base_model())
    adapted.set_adapter("default")
    with adapted.disable_adapter():
        assert active_memories(adapted)[1:] == called()
        np.testing.assert_array_equal(mean_heatmap(adapted), mean_heatmap(base))


def test_maps_metrics_and_summary_are_the_trained_routers(base, adapted, recwarn):
    rows, metrics = adapted.router_summary(), Lime.metrics(adapted)
    assert not recwarn.list
    assert [row.layer for row in rows] == [1, 2, 3] and all(row.moved for row in rows)
    maps = mean_heatmap(adapted), head_heatmaps(adapted)
    assert maps[0].shape == (4, 4) and maps[1].shape == (4, 2, 4)
    assert not np.allclose(maps[0], mean_heatmap(base))

    merged = adapted.merge_and_unload()
    assert rows == merged.router_summary()
    assert metrics == Lime.metrics(merged)
    np.testing.assert_array_equal(maps[0], mean_heatmap(merged))
    np.testing.assert_array_equal(maps[1], head_heatmaps(merged))


def test_pruning_refuses_what_an_adapter_holds(adapted, ids):
    before = {name: p.detach().clone() for name, p in adapted.named_parameters()}
    with pytest.raises(ValueError, match="router of layer 1"):
        adapted.prune_routers(1)
    assert adapted.config.router_sources is None
    assert all(torch.equal(p, before[name]) for name, p in adapted.named_parameters())

    merged = adapted.merge_and_unload()
    assert [row.layer for row in merged.prune_routers(1)] == [1, 2, 3]
    assert merged(ids).logits.isfinite().all()


@pytest.mark.filterwarnings("ignore")
def test_routers_that_an_adapter_changes_as_they_are_called(base, ids):
    """Low-rank changes of a router stand nowhere by themselves; merged, they do."""
    plainly = mean_heatmap(base)
    adapted = peft.get_peft_model(
        base,
        config(
            target_modules=["q_proj"], modules_to_save=None, target_parameters=["memory.weight"]
        ),
    )
    trained(adapted, ids)
    for look in (mean_heatmap, head_heatmaps, lambda m: m.router_summary()):
        with pytest.raises(WeightsUnknown, match="an adapter .* of a LimeRouter .* merge"):
            look(adapted)
    with pytest.raises(WeightsUnknown, match="an adapter"):
        adapted.prune_routers(1)
    assert Lime.metrics(adapted) == {}
    (got,) = capture(adapted, [ids])
    with adapted.disable_adapter():
        np.testing.assert_array_equal(mean_heatmap(adapted), plainly)

    merged = adapted.merge_and_unload()
    assert not np.allclose(mean_heatmap(merged), plainly)
    (expected,) = capture(merged, [ids])
    np.testing.assert_allclose(got.routed[3], expected.routed[3], rtol=1e-4, atol=1e-5)


def test_routers_keep_their_rate_beside_an_adapter(adapted):
    groups = parameter_groups(adapted, Lime.overrides, Optim(lr=1e-3))
    names = {id(p): name for name, p in adapted.named_parameters()}
    own = [group for group in groups if group["lr"] == 1e-2]
    assert len(own) == 1 and own[0]["weight_decay"] == 0
    routers = [names[id(p)] for p in own[0]["params"]]
    assert len(routers) == 3
    assert all(re.search(r"memory\.modules_to_save\.default\.weight$", name) for name in routers)


def test_an_adapter_with_routers_is_saved_and_loaded(base, adapted, ids, tmp_path):
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(input_ids=ids).logits, adapted(input_ids=ids).logits)
    np.testing.assert_array_equal(mean_heatmap(again), mean_heatmap(adapted))
