"""What tests of pretrained weights share: perturbed routers, a new interpreter, tolerances."""

import subprocess
import sys

import torch

from layermem.retrofit import router_parameters

# Logits of these models are of size 10 to 30, and 30 layers of float32 sums lie between.
CLOSE = {"atol": 1e-3, "rtol": 1e-3}


def perturb(model, scale=0.01, seed=0):
    """Let the routers of an attached model read other layers too, a little; return the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in router_parameters(model):
            weight.add_(scale * torch.randn(weight.shape, generator=generator).to(weight))
    return model


def in_new_interpreter(code, *arguments):
    """Run code in an interpreter of its own, and return what it printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
