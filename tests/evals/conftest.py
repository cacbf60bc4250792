"""Two models of random weights for the tests of evaluations, saved with the tokenizer of bytes."""

import pytest
from eval_fixtures import our_model

from layermem_bench.text.tokenizers import load_tokenizer


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """The folders of a plain decoder and of LIMe."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("plain", "lime"):
        our_model(name, longest=2048).save_pretrained(folder / name)
        load_tokenizer("bytes").save_pretrained(folder / name)
    return [str(folder / name) for name in ("plain", "lime")]
