"""One file for each cross-layer architecture. Every module here is imported, and registers itself.

It does not know: what its modules hold.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
