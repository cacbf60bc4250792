"""One file for each cross-layer architecture. Every module here is imported, and registers itself.

The package is callable: ``layermem.variants()`` lists the names, and ``layermem.variants.lime`` is
a module, as the one word for both would have it.

It does not know: what its modules hold.
"""

import importlib
import pkgutil
import sys
from types import ModuleType

from layermem.models import registry

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


class _Callable(ModuleType):
    def __call__(self) -> list[str]:
        return registry.variants()


sys.modules[__name__].__class__ = _Callable
