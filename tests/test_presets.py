"""Presets: every one resolves, builds at its sizes, and says what the paper says."""

import pytest
import torch
from tiny import MOST_SLOW

import layermem
from layermem_bench import presets
from layermem_bench.config.run import run_from_dict, to_dict


@pytest.mark.parametrize("name", presets.names())
@pytest.mark.parametrize("variant", MOST_SLOW)
def test_every_preset_is_a_run_of_every_variant(name, variant):
    run = presets.get_preset(name)
    assert run.preset == name and run_from_dict(to_dict(run)) == run
    assert presets.description(name)
    sizes = run.model.sizes()
    with torch.device("meta"):
        layermem.build(variant, **{**sizes, "vocab_size": sizes["vocab_size"] or 257})
    assert run.optim.batch_size % run.compute.micro_batch == 0
    # So that the best checkpoint is there to be kept.
    assert not run.save_every or run.eval_every % run.save_every == 0


def test_the_papers_numbers():
    run = presets.get_preset("paper-1b-gqa")
    assert run.optim.batch_size * run.data.block_size * run.max_steps == 2048 * 1024 * 20_000
    assert (run.optim.lr, run.optim.min_lr, run.optim.warmup_steps) == (1e-3, 1e-6, 200)
    assert (run.optim.beta1, run.optim.beta2, run.optim.eps) == (0.9, 0.95, 1e-8)
    assert (run.optim.weight_decay, run.optim.clip) == (0.1, 1.0)
    full = presets.get_preset("paper-1b-full")
    assert (run.model.num_key_value_heads, full.model.num_key_value_heads) == (8, None)
    deep = presets.get_preset("paper-depth-128")
    assert (deep.seed, deep.max_steps, deep.model.num_hidden_layers) == (42, 5000, 128)


def test_a_name_may_leave_out_its_scale():
    assert presets.get_preset("aet-4") == presets.get_preset("tiny-aet-4")
    for name, close in (("tiny_lm", "tiny-lm"), ("aet4", "aet-4")):
        with pytest.raises(ValueError, match=close):
            presets.get_preset(name)
