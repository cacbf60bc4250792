"""Plugins: modules of users that make variants, tasks, presets and studies known when imported.

    [project.entry-points."layermem.plugins"]      of an installed package
    mine = "my_package.layermem_parts"

    layermem --plugin my_module ...                 of a command: a module's name, or its .py file

What a command is given is handed on to the processes that it starts, by an environment variable.
"""

import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "layermem.plugins"
"""Group of entry points that name modules."""
VARIABLE = "LAYERMEM_PLUGINS"
"""Environment variable of further modules or files, separated as the system separates paths."""
_LOADED: set[str] = set()


class PluginMissingError(ValueError):
    """There is no plugin of a name, or none can be loaded by it."""


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
    # Whole paths of files: processes may start elsewhere.
    given = [str(Path(name).resolve()) if name.endswith(".py") else name for name in names]
    known = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*known, *given]))
    load_plugins()


def load_plugins() -> None:
    """Import every plugin that is installed, or named by the environment, once."""
    for entry in _installed(tuple(sys.path)):
        _load_once(entry.value, entry.load)
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        _load_once(name, partial(_load, name))


def plugin_files() -> list[tuple[str, str | None]]:
    """Return the name of every plugin that is loaded, and the file of its module."""
    load_plugins()
    modules = ((name, sys.modules.get(_module_of(name))) for name in sorted(_LOADED))
    return [(name, getattr(module, "__file__", None)) for name, module in modules]


@cache
def _installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the plugins of the packages on a path: a look through all of them takes 10 ms."""
    return tuple(entry_points(group=GROUP))


def _load_once(name: str, load: Callable[[], object]) -> None:
    """Import a plugin; say which it was, and in which of its lines an error was raised."""
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
        stem = _module_of(name).rpartition(".")[2]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).stem == stem]
        raise RuntimeError(
            f"the plugin {name} cannot be loaded ({type(error).__name__}: {error}"
            f"{f'; {stem}.py, line {lines[-1]}' if lines else ''}); mend it, or leave it out"
        ) from error


def _module_of(name: str) -> str:
    """Return the module of a file, of a module's name, or of an entry point's value."""
    return Path(name).stem if name.endswith(".py") else name.partition(":")[0]


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
    module_name = _module_of(name)
    spec = importlib.util.spec_from_file_location(module_name, name)
    if module_name in sys.modules or not Path(name).is_file() or not spec or not spec.loader:
        raise PluginMissingError(
            f"--plugin {name}: there is no such file, or a module named {module_name} is loaded "
            "already: rename the file"
        )
    module = importlib.util.module_from_spec(spec)
    # Pickle finds a class by its module and name.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
