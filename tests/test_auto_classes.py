"""The variants are known to transformers, whichever package is imported first."""

import subprocess
import sys

import pytest
from tiny import TINY

import layermem


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a saved LIMe model."""
    folder = tmp_path_factory.mktemp("saved")
    layermem.build("lime", **TINY).save_pretrained(folder)
    return folder


IMPORTS = [
    "import layermem; from transformers import AutoModelForCausalLM",
    "from transformers import AutoModelForCausalLM; import layermem",
    "import peft, layermem",
    # A module that needs transformers, and that the variants need.
    "from layermem.models.layers import MLP",
    # A pickle names the module of a variant alone.
    "import layermem.variants.lime",
]


@pytest.mark.slow
@pytest.mark.parametrize("first", IMPORTS)
def test_the_auto_classes_know_our_models_in_any_order(first, saved):
    code = f"""
{first}
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(saved)!r})
import layermem
assert type(model) is layermem.LimeForCausalLM and type(model.config) is layermem.LimeConfig
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
