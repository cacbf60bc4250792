"""Pretrained models, fetched once into the cache; without -m real the tests here are left out."""

import pytest
from forked import run_code

from layermem_bench.text.fetching import PUBLISHED
from layermem_bench.text.preparing import cache_folder

# Fetching is a process of its own, so that its memory is free afterwards. 75: try again later.
FETCH = """
import sys
from pathlib import Path
from layermem_bench.text.fetching import fetch
try:
    fetch(sys.argv[1], Path(sys.argv[2]))
except ConnectionError as error:
    print(error)
    sys.exit(75)
"""


def pytest_ignore_collect(collection_path, config):
    """Leave these files out, as an expression of other markers does not."""
    return None if "real" in config.getoption("markexpr") else True


def fetched(name, folder):
    """Return the folder of a published model; skip the test where it cannot be downloaded."""
    place = cache_folder() / "models" / f"{name}-{PUBLISHED[name].sha256[:6]}"
    if not place.exists():
        status, shown, errors = run_code(FETCH, name, str(place), folder=folder)
        if status == 75:
            pytest.skip(f"{name} is not in {cache_folder()}: {shown.strip()}")
        assert status == 0, errors[-3000:]
    return place


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory):
    """The folder of SmolLM2 135M Instruct."""
    return fetched("smollm2-135m", tmp_path_factory.mktemp("fetched"))


@pytest.fixture(scope="session")
def minilm_folder(tmp_path_factory):
    """The folder of MiniLM."""
    return fetched("minilm", tmp_path_factory.mktemp("fetched"))
