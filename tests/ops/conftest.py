"""What the tests of ops share: a garbage collector that does not look at what was imported."""

import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def imports_are_not_collected():
    """Tests here collect often and look at all objects; those of imports are a million."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
