"""The variants, one module each, which register themselves when this package imports them.

The package is callable, because ``layermem.variants`` is both a package and a public function:
``layermem.variants()`` returns the names, and ``layermem.variants.lime`` is a module.
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
