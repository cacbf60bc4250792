"""When the variants become known to transformers, whichever package is imported first."""

import importlib
import subprocess
import sys
from importlib.machinery import PathFinder

import pytest
from tiny import TINY

import layermem
from layermem.auto_classes import call_after_import


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a saved LIMe model."""
    folder = tmp_path_factory.mktemp("saved")
    layermem.build("lime", **TINY).save_pretrained(folder)
    return folder


IMPORTS = [
    "import layermem; from transformers import AutoModelForCausalLM",
    "from transformers import AutoModelForCausalLM; import layermem",
    # A package that imports transformers while it is imported itself.
    "import layermem, peft",
    # A module that needs transformers, and that the variants need.
    "from layermem.models.layers import MLP",
    # Looking for transformers imports nothing.
    "import layermem; from importlib.util import find_spec; find_spec('transformers')",
]


@pytest.mark.slow
@pytest.mark.parametrize("first", IMPORTS)
def test_the_auto_classes_know_our_models_in_any_order(first, saved):
    run(f"""
{first}
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(saved)!r})
import layermem
assert type(model) is layermem.LimeForCausalLM and type(model.config) is layermem.LimeConfig
""")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_and_models_of_the_package_are_imported_when_used(saved):
    run(f"""
import layermem, pickle, pydoc, sys
assert set(layermem.__all__) | {{"models", "ops", "variants", "__version__"}} <= set(dir(layermem))
for name in ("fly", "__path_of_nothing__"):
    assert not hasattr(layermem, name)
assert "torch" not in sys.modules
assert layermem.route is layermem.ops.route.route and "transformers" not in sys.modules

from transformers import AutoConfig, AutoModelForCausalLM
sizes = {{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8}}
AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", intermediate_size=8, **sizes))
assert not [name for name in sys.modules if name.startswith("layermem.models")]
model = AutoModelForCausalLM.from_pretrained({str(saved)!r})
assert type(model) is layermem.LimeForCausalLM and type(model.config) is layermem.LimeConfig

config = pickle.loads(pickle.dumps(layermem.LimeConfig()))
assert type(config) is layermem.LimeConfig is layermem.variants.lime.LimeConfig
assert layermem.variants() == layermem.models.registry.variants()
assert "layermem.models.pairs" not in sys.modules
help = pydoc.render_doc(layermem, renderer=pydoc.plaintext)
assert "class LimeForCausalLM" in help and "build(" in help
names = {{}}
exec("from layermem import *", names)
assert set(layermem.__all__) <= set(names)
""")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that nothing has imported yet."""
    (tmp_path / "awaited.py").write_text("import sys\nsys.calls.append('body')\nVALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "calls", [], raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path / "awaited.py"
    sys.modules.pop("awaited", None)


def test_a_function_is_called_once_and_after_the_modules_own_code(module):
    finders = list(sys.meta_path)
    call_after_import("awaited", lambda: sys.calls.append(sys.modules["awaited"].VALUE))
    awaited = importlib.import_module("awaited")
    assert sys.calls == ["body", 1] and sys.meta_path == finders
    assert awaited.__spec__.loader is awaited.__loader__
    call_after_import("awaited", lambda: sys.calls.append("at once"))
    assert sys.calls == ["body", 1, "at once"]


def test_an_import_that_failed_is_tried_again(module):
    text = module.read_text()
    module.write_text(text + "1 / 0\n")
    call_after_import("awaited", lambda: sys.calls.append("called"))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("awaited")
    assert sys.calls == ["body"]
    module.write_text(text + "# mended\n")
    importlib.import_module("awaited")
    assert sys.calls == ["body", "body", "called"]


def test_two_functions_wait_for_one_module(module):
    for name in ("first", "second"):
        call_after_import("awaited", lambda name=name: sys.calls.append(name))
    importlib.import_module("awaited")
    assert sys.calls[0] == "body" and sorted(sys.calls[1:]) == ["first", "second"]


def test_an_import_under_way_skips_no_finder(module):
    """The awaited module may be imported while another import asks one finder after another."""

    class Importing:
        def find_spec(self, fullname, path, target=None):
            if fullname == "other":
                importlib.import_module("awaited")

    (module.parent / "other.py").touch()
    sys.meta_path.insert(sys.meta_path.index(PathFinder), Importing())
    call_after_import("awaited", lambda: None)
    importlib.import_module("other")
    del sys.modules["other"]
