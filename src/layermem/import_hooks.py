"""``call_after_import`` calls a function once another package has been imported.

It does not know: which package is waited for, and what is done then.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def call_after_import(name: str, function: Callable[[], object]) -> None:
    """Call a function now if the module ``name`` is imported, else at the end of its import."""
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Finder(name, function))


class _Finder(MetaPathFinder):
    """Finds one module as the finders after it do, and calls a function when it is loaded.

    The module and its loader stay what they are, but for the loader's ``exec_module``, which calls
    the function when the module's own code has run. Whether a module only exists
    (``importlib.util.find_spec``) can be asked any number of times.
    """

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.name, self.function = name, function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._wrap_loader(spec)
                return spec
        return None

    def _wrap_loader(self, spec: ModuleSpec) -> None:
        if spec.loader is None:
            return
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            self.function()
            # Only now: if the function failed, so did the import, and the next one tries again.
            if self in sys.meta_path:
                sys.meta_path.remove(self)

        # A finder makes a new loader for each spec, so that no other module is concerned.
        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
