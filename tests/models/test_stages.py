"""Stages of a decoder: what they compute one after the other, and in processes with schedules."""

import pytest
import torch
from forked import in_forks, join, leave
from tiny import TINY, make
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from layermem.models.registry import lookup
from layermem.models.stages import DecoderStage, crossing, stage_layers

WINDOW = {"router": "last", "router_window": 2}
CASES = {
    **{name: (name, {}) for name in ("plain", "lime", "hyper_connections", "mudd")},
    "lime-last-2": ("lime", WINDOW),
    "depth_attention": ("depth_attention", {"gate": "head"}),
    "lime+mudd": ("lime+mudd", {}),
    "lime_half": ("lime_half", {}),
    "fused_kv": ("fused_kv", {}),
    "midpoint": ("midpoint", {}),
}


def a_model(name, fields):
    entry = lookup(name)
    return make(entry.causal_lm, entry.config(**{**TINY, **fields})).double()


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, TINY["vocab_size"], (4, 9), generator=generator)


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def assert_gradients(stages, model):
    """Every parameter of the model is in one stage, with the model's gradient."""
    expected = {name: p.grad for name, p in model.named_parameters()}
    found = {name: p.grad for stage in stages for name, p in stage.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("count", [2, 4])
def test_stages_after_each_other_compute_what_the_model_does(entry, count):
    def built():
        # Eager attention is given a mask, sdpa none.
        attention = "eager" if count == 2 else "sdpa"
        config = entry.config(**TINY, attn_implementation=attention)
        return make(entry.causal_lm, config).double()

    ids, labels, model, other = draw(0), draw(1), built(), built()
    if model.model.reads_ids:
        pytest.skip("stages do not hand on token ids")
    stages = [DecoderStage(other, layers) for layers in stage_layers(4, count)]
    sent = (ids,)
    for stage in stages:
        out = stage(*sent)
        sent = out if isinstance(out, tuple) else (out,)
        assert stage.is_last or all(x.is_contiguous() for x in sent)
    expected = model(ids).logits
    torch.testing.assert_close(sent[0], expected, rtol=1e-12, atol=1e-12)
    loss_of(sent[0], labels).backward()
    loss_of(expected, labels).backward()
    assert_gradients(stages, model)
    names = [name for stage in stages for name in stage.state_dict()]
    assert sorted(names) == sorted(model.state_dict())


def test_a_window_keeps_what_crosses_small():
    lime = lookup("lime")
    full, window = lime.config(**TINY), lime.config(**TINY, **WINDOW)
    assert crossing(lime.variant, full, 3) == (("slot", 0), ("slot", 1), ("slot", 2))
    assert crossing(lime.variant, window, 3) == (("slot", 2),)
    half = lookup("lime_half")
    assert crossing(half.variant, half.config(**TINY), 1) == (("lent", 0), ("slot", 0))
    assert crossing(half.variant, half.config(**TINY), 3) == (("lent", 2),)
    assert crossing(lookup("plain").variant, full, 3) == ()


def test_tied_embeddings_are_refused():
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        DecoderStage(a_model("lime", {"tie_word_embeddings": True}), range(2))


def test_layers_are_shared_out():
    assert stage_layers(7, 3) == [range(3), range(3, 5), range(5, 7)]
    for count in (0, 8):
        with pytest.raises(ValueError, match=f"from 1 to the 7 layers, got {count}"):
            stage_layers(7, count)


def work(rank, world, folder):
    join(rank, world, folder)
    found = {}
    for case, (name, fields) in CASES.items():
        for schedule in (ScheduleGPipe, Schedule1F1B):
            layers = stage_layers(TINY["num_hidden_layers"], world)[rank]
            stage = DecoderStage(a_model(name, fields), layers)
            pipeline = PipelineStage(stage, rank, world, torch.device("cpu"))
            run, losses = schedule(pipeline, 4, loss_fn=loss_of), []
            inputs = (draw(0),) if stage.is_first else ()
            run.step(*inputs, **({"target": draw(1), "losses": losses} if stage.is_last else {}))
            gradients = {name: p.grad for name, p in stage.named_parameters()}
            found[f"{case} {schedule.__name__}"] = gradients, [loss.detach() for loss in losses]
    torch.save(found, f"{folder}/{world}-{rank}.pt")
    leave(folder)


@pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")
@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_processes_with_a_stage_each_compute_what_one_does(world, tmp_path):
    in_forks(work, (world, tmp_path), world)
    of_ranks = [
        torch.load(tmp_path / f"{world}-{rank}.pt", weights_only=True) for rank in range(world)
    ]
    for case, (name, fields) in CASES.items():
        model = a_model(name, fields)
        expected = loss_of(model(draw(0)).logits, draw(1))
        expected.backward()
        for schedule in ("ScheduleGPipe", "Schedule1F1B"):
            of_case = [found[f"{case} {schedule}"] for found in of_ranks]
            losses = of_case[-1][1]
            assert len(losses) == 4
            torch.testing.assert_close(torch.stack(losses).mean(), expected.detach())
            gradients = {name: grad for part, _ in of_case for name, grad in part.items()}
            assert gradients.keys() == dict(model.named_parameters()).keys()
            for key, parameter in model.named_parameters():
                torch.testing.assert_close(
                    gradients[key], parameter.grad, rtol=1e-9, atol=1e-12, msg=f"{case}: {key}"
                )
