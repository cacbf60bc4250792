"""Refuses an adapter of PEFT that holds routers on a model without memory.

With ``modules_to_save=["memory"]`` routers are part of an adapter. PEFT loads it into any model
that has the names of its other modules, and leaves the routers out without a word. PEFT has no
place for such a check, so importing this module, as ``layermem.retrofit`` does where PEFT is
installed, wraps the method that puts adapters into a model.
"""

import functools
from typing import Any

from peft.tuners.tuners_utils import BaseTuner
from torch import nn

from layermem.retrofit.attachment import MEMORY

_inject = BaseTuner.inject_adapter


@functools.wraps(_inject)
def _inject_adapter(
    self: Any, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any
) -> None:
    names = getattr(self.peft_config[adapter_name], "modules_to_save", None) or ()
    # Of an attached model, or of one of ours.
    modules = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if MEMORY in names and MEMORY not in modules:
        raise ValueError(
            f"the adapter {adapter_name!r} holds routers (modules_to_save={list(names)}), and "
            f"{type(model).__name__} has no layer memory: attach it before the adapter is loaded"
        )
    _inject(self, model, adapter_name, *args, **kwargs)


_tuner: Any = BaseTuner
_tuner.inject_adapter = _inject_adapter
