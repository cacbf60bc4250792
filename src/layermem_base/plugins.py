"""Plugins: modules of users that make variants, tasks, presets and studies known when imported.

    [project.entry-points."layermem.plugins"]      of an installed package
    mine = "my_package.layermem_parts"

    layermem --plugin my_module ...                 of a command: a module's name, or its .py file

What a command is given is handed on to the processes that it starts, by an environment variable.
"""

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
GROUP = "layermem.plugins"
"""Group of entry points that name modules."""
VARIABLE = "LAYERMEM_PLUGINS"
"""Environment variable of further modules or files, separated as the system separates paths."""
_LOADED: set[str] = set()
_OWN = {Path(__file__).parent.with_name(f"layermem{part}") for part in ("", "_base", "_bench")}


class PluginMissingError(ValueError):
    """There is no plugin of a name, or none can be loaded by it."""


class Named(Generic[T]):
    """Functions that make things of one kind, known by their names; those of plugins too."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._functions: dict[str, Callable[[], T]] = {}

    def add(self, function: Callable[[], T]) -> Callable[[], T]:
        """Make a function known by its name, with dashes."""
        name = function.__name__.replace("_", "-")
        if name in self._functions:
            raise ValueError(f"a {self.kind} named {name!r} is known already; rename the function")
        self._functions[name] = function
        return function

    def names(self) -> list[str]:
        """Return all names, those of plugins last."""
        load_plugins()
        return list(self._functions)

    def description(self, name: str) -> str:
        """Return the first line of what a function says of itself."""
        return (self._functions[name].__doc__ or "").strip().partition("\n")[0].rstrip(".")

    def make(self, name: str, other_names: Iterable[str] = ()) -> T:
        """Return what the function of a name makes; ``other_names`` are such as are understood."""
        if name not in self.names():
            raise unknown_name(self.kind, name, self._functions, other_names)
        return self._functions[name]()


def unknown_name(
    kind: str, name: str, known: Iterable[str], other_names: Iterable[str] = (), further: str = ""
) -> ValueError:
    """Return the error of an unknown name: the nearest or all, and that a plugin may be missing.

    ``other_names`` are understood beside the known ones, ``further`` says which others there are.
    """
    known = list(known)
    close = difflib.get_close_matches(name, [*known, *other_names], n=1)
    there_are = f"there are {', '.join(known) or 'none'}{further}."
    hint = f"did you mean {close[0]}?" if close else there_are
    return ValueError(
        f"unknown {kind} {name!r}; {hint} A plugin's needs --plugin MODULE (in Python: its import)"
    )


def add_plugins(names: list[str]) -> None:
    """Import modules, by their names or files, here and in processes that are started from here."""
    given = [_resolved(name) for name in names]
    known = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*known, *given]))
    load_plugins()


def load_plugins() -> None:
    """Import every plugin that is installed, or named by the environment, once."""
    for entry in _installed(tuple(sys.path)):
        _load_once(entry.value, entry.load, "uninstall its package")
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        _load_once(name, partial(_load, name), "leave it out")


def plugin_digest() -> str:
    """Return a digest of the modules that plugins are, without what they import; "": none is."""
    load_plugins()
    total = hashlib.sha256()
    for name in sorted(_LOADED):
        module = sys.modules.get(Path(name).stem if name.endswith(".py") else name.split(":")[0])
        file = getattr(module, "__file__", None)
        total.update(name.encode() + (_content_of(Path(file)) if file else b""))
    return total.hexdigest() if _LOADED else ""


def _content_of(file: Path) -> bytes:
    """Return what is in a file; nothing: it was removed, or lies in a zip."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


@cache
def _installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the plugins of the packages on a path: a look through all of them takes 10 ms."""
    return tuple(entry_points(group=GROUP))


def _load_once(name: str, load: Callable[[], object], otherwise: str) -> None:
    """Import a plugin; say which it was, and where, if an error is raised in it."""
    if name in _LOADED:
        return
    # What a plugin imports may ask for plugins.
    _LOADED.add(name)
    try:
        load()
    except PluginMissingError:
        _LOADED.discard(name)
        raise
    except Exception as error:
        _LOADED.discard(name)
        raise RuntimeError(
            f"the plugin {name} cannot be loaded ({type(error).__name__}: {error}"
            f"{_place(error)}); mend it, or {otherwise}"
        ) from error


def _place(error: Exception) -> str:
    """Return the line of a plugin that an error came of; a syntax error says it itself."""
    places = [
        place
        for place in traceback.extract_tb(error.__traceback__)
        if "importlib" not in place.filename and not _OWN.intersection(Path(place.filename).parents)
    ]
    return f"; {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""


def _resolved(name: str) -> str:
    """Return the whole path of a file: processes may start elsewhere."""
    return str(Path(name).resolve()) if name.endswith(".py") else name


def _load(name: str) -> None:
    if not name.endswith(".py"):
        # As Python does it for ``-m``: a command's own folder is no place of modules.
        sys.path.append(os.getcwd())
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise
            raise PluginMissingError(
                f"--plugin {name}: there is no module of that name in {os.getcwd()} or installed; "
                "give its name, or the path of its .py file"
            ) from error
        finally:
            sys.path.remove(os.getcwd())
        return
    if not Path(name).is_file():
        raise PluginMissingError(f"--plugin {name}: there is no such file")
    module_name = Path(name).stem
    if module_name in sys.modules:
        raise PluginMissingError(
            f"--plugin {name}: a module named {module_name} is loaded already; rename the file"
        )
    spec = importlib.util.spec_from_file_location(module_name, name)
    if spec is None or spec.loader is None:
        raise PluginMissingError(f"--plugin {name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Pickle finds a class by its module and name.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
