"""Fixtures: the variants, their cases, token ids, a tokenizer, what Ctrl-C does."""

import gc
import importlib.util
import os
import signal

import pytest
import torch
from hub_cache import hub_cache as hub_cache
from tiny import CASES, PAIRS, TINY

from layermem.models.registry import list_variants, lookup


@pytest.fixture(scope="session", autouse=True)
def imports_are_not_collected():
    """Leave out of collections of garbage what is imported by now, a million objects: a training
    begins with a collection, which took two fifths of the time of a short one."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk():
    """Leave files to the kernel, which keeps them when a process is killed: waiting until they are
    on the disk, for the case of a power failure, took a tenth of the time of a short training."""
    real, os.fsync = os.fsync, lambda file: None
    yield
    os.fsync = real


@pytest.fixture(scope="session", autouse=True)
def interrupts_reach_what_is_started():
    """A shell has what it starts in the background ignore SIGINT, and all that this starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=CASES, ids=[case[0] for case in CASES])
def case(request):
    """A registered variant and extra fields, as (entry, fields)."""
    _, name, extra = request.param
    return lookup(name), {**TINY, **extra}


@pytest.fixture(params=[*list_variants(), *PAIRS])
def entry(request):
    """The registry's entry of every variant and of some pairs."""
    return lookup(request.param)


@pytest.fixture
def undrawn(monkeypatch):
    """Leave figures of pages empty, for tests that look at other things: most of a page's time."""
    ink = "layermem_bench.pages.figures.in_ink_of_the_page"
    monkeypatch.setattr(ink, lambda canvas: "<svg></svg>")


@pytest.fixture
def ids():
    """Token ids [3, 11]."""
    return torch.randint(1, TINY["vocab_size"], (3, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def tokenizer():
    """Words to ids, made on the spot."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *"abcdefgh"])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


@pytest.fixture
def alone(tmp_path):
    """A process group of this process and no other."""
    meet = f"file://{tmp_path}/meet-alone"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def interruptible():
    """Ctrl-C as Python takes it; a job in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine, whose processes last for all tests of a file."""
    # Not imported yet: Ray reads variables as it is.
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    import ray

    ray.shutdown()
    # Ray puts a handler of its own in place of the interpreter's.
    for number, handler in before.items():
        signal.signal(number, handler)
