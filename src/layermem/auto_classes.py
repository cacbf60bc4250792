"""How transformers' Auto classes come to know our models: at the first look-up of one of them.

Until then nothing of ours is imported. ``wait_for_transformers`` puts a dictionary of its own into
transformers' table of configs, once that table exists. When a model type of ours is looked up in
it, it imports the variants, or attached models, which register themselves with every Auto class.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PREFIX = "layermem_"
"""What the model types of our configs begin with."""
_TABLE = "transformers.models.auto.configuration_auto"


def wait_for_transformers() -> None:
    """Let the Auto classes find our models, now or once transformers' table of configs exists."""
    call_after_import(_TABLE, _replace_extra_configs)
    # Whoever looks a variant up by its name finds all of them.
    call_after_import(f"{__package__}.models.registry", lambda: _import("variants"))
    # Adapters of attached models have a type of their own, which PEFT has to know.
    call_after_import("peft", lambda: _import("retrofit.peft_adapters"))


def _import(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}")


def _replace_extra_configs() -> None:
    table = sys.modules[_TABLE].CONFIG_MAPPING
    table._extra_content = _ConfigsOnDemand(table._extra_content)


class _ConfigsOnDemand(dict[str, Any]):
    """The configs registered with transformers; ours are imported when one is looked up.

    A pair of variants (``layermem_lime+mudd``) is made then, by its name. ``layermem_attached`` is
    the type of a saved model of transformers with attached memory.
    Plugins that are installed, or named by the environment, are imported for a type of nobody else.
    """

    def __contains__(self, model_type: object) -> bool:
        if super().__contains__(model_type):
            return True
        name = str(model_type).removeprefix(PREFIX)
        if name == model_type:
            return False
        if name == "attached":
            _import("retrofit.attached_config")
        elif "+" in name:
            _import("models.registry").lookup(name)
        else:
            _import("variants")
        if not (is_known := super().__contains__(model_type)):
            _import("models.plugins").load_plugins()
            is_known = super().__contains__(model_type)
        if not is_known:
            # Not an error: the model may come with code of its own (trust_remote_code).
            warnings.warn(
                f"layermem knows no variant {name!r}: if a plugin declares it, import the plugin's "
                "module first (the README.md beside the model names it; commands: --plugin MODULE)",
                stacklevel=2,
            )
        return is_known


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
        finders = list(sys.meta_path)
        if fullname != self.name or self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
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
            # Only now: if the function failed, so did the import, and the next one tries again. The
            # list is replaced, not changed: an import under way that iterates over it would skip a
            # finder, and not find a module that is there.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

        # A finder makes a new loader for each spec, so that no other module is concerned.
        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
