"""A compiled run attends causally without a mask, unless documents are kept apart."""

import pytest
import torch
from attention_calls import AttentionCall, recording_backend
from small_run import a_run

from layermem_bench.train.run import train


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True], ids=["joined", "isolated"])
def test_a_compiled_run(tmp_path, monkeypatch, isolate):
    """The training step as accelerate compiles it, but without inductor."""
    calls, compiler = [], torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model, **_: compiler(model, backend=recording_backend(calls))
    )
    torch.compiler.reset()
    run = a_run(
        tmp_path,
        max_steps=2,
        eval_every=2,
        save_every=0,
        model={"num_hidden_layers": 2},
        data={"isolate_documents": isolate},
        compute={"compile": True},
    )
    train(run, tmp_path / "run")
    assert calls == [AttentionCall(is_causal=not isolate, has_mask=isolate)] * 2
