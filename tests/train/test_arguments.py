"""How a run's config is translated for the machine that it runs on."""

import pytest
import torch

from layermem_bench.train.setup import uses_bfloat16


@pytest.mark.parametrize("native", [True, False])
def test_auto_takes_no_bfloat16_that_a_gpu_only_emulates(native, monkeypatch):
    """An older GPU computes in it, slower than in float32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: native or including_emulation,
    )
    assert uses_bfloat16("auto") is native
    assert uses_bfloat16("bfloat16") and not uses_bfloat16("float32")
