"""Layer memory for models we do not own: ``attach`` adds it to a model of transformers in place.

It does not know: how such a model is trained or measured.
"""

from layermem.retrofit.adapter import load_routers, save_routers
from layermem.retrofit.attaching import attach, detach, router_parameters, trainable
from layermem.retrofit.hosts import HOSTS, Host

__all__ = [
    "HOSTS",
    "Host",
    "attach",
    "detach",
    "load_routers",
    "router_parameters",
    "save_routers",
    "trainable",
]
