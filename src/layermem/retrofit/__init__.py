"""Layer memory for models that exist: ``attach`` adds it to a model of transformers in place."""

from contextlib import suppress

from layermem.retrofit.adapter import load_routers, save_routers
from layermem.retrofit.attaching import attach, detach, router_parameters, trainable
from layermem.retrofit.hosts import HOSTS, Host
from layermem.retrofit.loading import load_attached

__all__ = [
    "HOSTS",
    "Host",
    "attach",
    "detach",
    "load_attached",
    "load_routers",
    "router_parameters",
    "save_routers",
    "trainable",
]

# PEFT need not be installed.
with suppress(ImportError):
    from layermem.retrofit import peft_adapters as peft_adapters
