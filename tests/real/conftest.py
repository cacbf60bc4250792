"""Pretrained models, fetched once into the cache; without -m real the tests here are left out."""

import subprocess
import sys

import pytest

from layermem_bench.text.fetching import PUBLISHED
from layermem_bench.text.preparing import cache_folder

# Fetching is a process of its own, so that its memory is free afterwards. 75: try again later.
FETCH = """
import logging, sys
from pathlib import Path
from layermem_bench.text.fetching import fetch
logging.basicConfig(level=logging.INFO, format="%(message)s")
try:
    fetch(sys.argv[1], Path(sys.argv[2]))
except ConnectionError as error:
    print(error)
    sys.exit(75)
"""


def pytest_ignore_collect(collection_path, config):
    """Leave these files out, as an expression of other markers does not."""
    return None if "real" in config.getoption("markexpr") else True


def fetched(name):
    """Return the folder of a published model; skip the test where it cannot be downloaded."""
    folder = cache_folder() / "models" / f"{name}-{PUBLISHED[name].sha256[:6]}"
    if not folder.exists():
        command = [sys.executable, "-c", FETCH, name, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 75:
            pytest.skip(f"{name} is not in {cache_folder()}: {done.stdout.strip()}")
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def smollm2_folder():
    """The folder of SmolLM2 135M Instruct."""
    return fetched("smollm2-135m")


@pytest.fixture(scope="session")
def minilm_folder():
    """The folder of MiniLM."""
    return fetched("minilm")
