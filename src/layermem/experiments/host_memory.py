"""Which parameters of a model of transformers a run trains, and whether its memory is the run's.

It does not know: how the model is loaded or trained.
"""

from typing import Any

from layermem.config import Host
from layermem.retrofit import trainable
from layermem.retrofit.attaching import projection_names, routers_of_full_memory
from layermem.retrofit.loading import saved_memory
from layermem.train.lora import add_lora


def choose_trained(model: Any, host: Host) -> None:
    """Let the parameters of a model train that its run trains."""
    if host.train == "lora":
        add_lora(model, projection_names(model), routers_of_full_memory(model))
    elif host.memory == "none":
        model.requires_grad_(True)
    else:
        trainable(model, "all" if host.train == "all" else "routers")


def check_same_memory(location: str, host: Host) -> None:
    """Raise if a checkpoint with memory has another than its run asks for."""
    saved = saved_memory(location)
    if (saved["router"], saved["window"]) != (host.memory, host.window):
        raise ValueError(
            f"{location} has memory={saved['router']} window={saved['window']}, and the run asks "
            f"for memory={host.memory} window={host.window}: ask for its own, or start from a "
            "model without memory"
        )
