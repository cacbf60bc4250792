"""An attached model under threads, errors, checkpointing, compilers, adapters and offloading."""

import datetime
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from forked import in_forks, leave
from host_models import HOSTS, make_attached, make_host, make_ids, shake_routers
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from layermem.ops.shared_buffer import using_naive
from layermem.retrofit import attach, detach, router_parameters, save_routers, trainable
from layermem.retrofit.attachment import attachment_of

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
FEW = ("llama", "gpt2", "deberta-shared")


def gradients(model, ids):
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    return {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}


# Nested, parallel and broken forwards


def test_a_forward_inside_that_of_another_model():
    model, other, ids = make_attached("llama"), make_attached("gpt2"), make_ids()
    inner = []
    with torch.no_grad():
        expected = model(ids).logits, other(ids).logits
        model.model.layers[2].register_forward_hook(lambda *_: inner.append(other(ids).logits))
        assert torch.equal(model(ids).logits, expected[0])
    assert torch.equal(inner[0], expected[1])


def test_a_forward_inside_its_own_models_is_refused():
    model, ids, inner = make_attached("llama"), make_ids(), []

    def run_again(module, args, output):
        if not inner:
            inner.append(None)
            model(ids)

    model.model.layers[2].register_forward_hook(run_again)
    with pytest.raises(RuntimeError):
        model(ids)


def test_forwards_in_parallel_threads():
    model, meet = make_attached("llama"), threading.Barrier(4, timeout=120)
    batches = [make_ids(2, 9, seed) for seed in range(4)]

    @torch.no_grad()
    def run(ids):
        return model(ids).logits

    def wait_for_others(module, args, output):
        meet.wait()

    expected = [run(ids) for ids in batches]
    model.model.layers[1].register_forward_hook(wait_for_others)
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(run, batches), expected))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_forward_after_one_that_broke(error):
    model, ids, is_broken = make_attached("llama"), make_ids(), []

    def fail(module, args, output):
        if is_broken:
            raise error("in the middle")

    model.model.layers[2].register_forward_hook(fail)
    with torch.no_grad():
        expected = model(ids).logits
        for _ in range(3):
            is_broken.append(True)
            with pytest.raises(error, match="in the middle"):
                model(ids)
            is_broken.clear()
            assert torch.equal(model(ids).logits, expected)
    # An interrupt leaves its forward to the next one, which removes it.
    model(ids)
    assert attachment_of(model).running.lanes is None


def test_a_layer_by_itself_is_refused():
    model, ids = make_attached("llama"), make_ids()
    with pytest.raises(RuntimeError, match="layer 2 of an attached model was called outside"):
        model.model.layers[2].self_attn.k_proj(torch.zeros(1, 3, 32))
    layers = model.model.layers
    with pytest.raises(RuntimeError, match="k_proj of layer 2 was called where that of layer 1"):
        model.model.layers = nn.ModuleList([layers[0], layers[2]])
        model.config.num_hidden_layers = 2
        model(ids)
    with pytest.raises(RuntimeError, match="k_proj of layer 0 was called where that of layer 1"):
        model.model.layers = nn.ModuleList([layers[0], layers[0]])
        model(ids)
    assert attachment_of(model).running.lanes is None


@pytest.mark.parametrize("first", [0, 3], ids=["all layers", "the last layer"])
def test_a_projection_that_is_not_called_is_refused(first):
    """As of a fused attention. Nothing would be routed, and the outputs be the bare model's."""
    model, ids = make_attached("llama"), make_ids()
    for layer in model.model.layers[first:]:
        projection = layer.self_attn.v_proj
        projection._call_impl = projection.forward
    with pytest.raises(RuntimeError, match=f"the v_proj of layer {first} was not called"):
        model(ids)
    assert attachment_of(model).running.lanes is None


def test_a_wrapper_that_runs_layers_again_is_refused():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model, ids = make_attached("llama").train(), make_ids()
    model.model.layers[2] = checkpoint_wrapper(model.model.layers[2])
    loss = model(ids, labels=ids).loss
    with pytest.raises(RuntimeError, match=r"gradient_checkpointing_enable"):
        loss.backward()


# Activation checkpointing


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not-reentrant"])
@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in HOSTS]
)
def test_checkpointing_gives_the_same_gradients(name, reentrant):
    model, ids = make_attached(name, dtype=torch.float64).train(), make_ids()
    if "deberta" in name and reentrant:
        # Its layers share embeddings of positions, which re-entrant checkpointing goes through
        # once for each layer: the bare model fails too.
        model = detach(model)
        model.gradient_checkpointing_enable({"use_reentrant": True})
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            gradients(model, ids)
        return
    expected = gradients(model, ids)
    assert all(key in expected for key, _ in model.named_parameters() if ".memory." in key)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    got = gradients(model, ids)
    assert got.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(got[key], expected[key], rtol=1e-10, atol=1e-12)
    model.gradient_checkpointing_disable()
    torch.testing.assert_close(gradients(model, ids), expected, rtol=1e-10, atol=1e-12)
    assert attachment_of(model).running.lanes is None


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not-reentrant"])
def test_checkpointing_where_slots_go_from_layer_to_layer(reentrant):
    model, ids = make_attached("llama", dtype=torch.float64, window=2).train(), make_ids()
    expected = gradients(model, ids)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with using_naive():
        torch.testing.assert_close(gradients(model, ids), expected, rtol=1e-10, atol=1e-12)


# Said of the first layer, which has nothing to train.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not-reentrant"])
@pytest.mark.parametrize("window", [None, 2], ids=["full", "last-2"])
def test_checkpointing_with_frozen_base(reentrant, window):
    """Re-entrant checkpointing runs without a gradient where no input needs one."""
    model, ids = make_attached("llama", dtype=torch.float64, window=window).train(), make_ids()
    trainable(model, "routers")
    expected = gradients(model, ids)
    assert len(expected) == 3
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    # Transformers switches it on with checkpointing.
    model.disable_input_require_grads()
    torch.testing.assert_close(gradients(model, ids), expected, rtol=1e-10, atol=1e-12)


def test_checkpointed_layers_run_again():
    model, ids, calls = make_attached("llama").train(), make_ids(), []
    model.model.layers[3].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    gradients(model, ids)
    assert len(calls) == 2
    detach(model)
    gradients(model, ids)
    assert len(calls) == 4


# Compilers


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_a_compiled_model_has_the_same_gradients(name):
    model, ids, gradients = make_attached(name).train(), make_ids(), []
    # DeBERTa's own forward cannot be traced as one graph.
    whole = name != "deberta-shared"
    for each in (model, torch.compile(model, backend="aot_eager", fullgraph=whole)):
        model.zero_grad()
        each(ids).logits.square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.slow
def test_compiled_code_is_not_kept_when_memory_comes_and_goes():
    """Compiled code does not look for hooks that are new."""
    model, ids = make_host("llama"), make_ids()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        before = compiled(ids).logits
        shake_routers(attach(model))
        expected = model(ids).logits
        assert (expected - before).abs().max() > 1e-3
        torch.testing.assert_close(compiled(ids).logits, expected, **CLOSE)
        detach(model)
        torch.testing.assert_close(compiled(ids).logits, before, **CLOSE)


# Places and precisions


@pytest.mark.parametrize("first", ["attach", "offload"])
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_offloaded_weights(first, where, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    ids = make_ids()
    expected = make_attached("llama")
    model = make_host("llama")
    if first == "attach":
        shake_routers(attach(model))
    if where == "disk":
        accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    else:
        accelerate.cpu_offload(model, execution_device="cpu")
    if first == "offload":
        shake_routers(attach(model))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, expected(ids).logits, **CLOSE)
    if first == "attach":
        with pytest.raises(ValueError, match="not whole and in memory"):
            save_routers(model, tmp_path / "routers")


class EightBitLinear(nn.Module):
    """A linear module with weights of 8 bits, as quantisation makes them."""

    def __init__(self, linear):
        super().__init__()
        self.out_features = linear.out_features
        self.scale = linear.weight.detach().abs().max() / 127
        weight = (linear.weight.detach() / self.scale).round().to(torch.int8)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.weight * self.scale)


def test_quantised_projections(tmp_path):
    model, ids = make_host("llama"), make_ids()
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(layer.self_attn, name, EightBitLinear(getattr(layer.self_attn, name)))
    with torch.no_grad():
        before = model(ids).logits
        assert torch.equal(attach(model)(ids).logits, before)
    assert all(weight.dtype is torch.float32 for weight in router_parameters(model))
    trainable(model, "all")
    assert gradients(model, ids).keys() >= {"model.layers.3.self_attn.memory.weight"}
    save_routers(model, tmp_path)


def test_routers_of_a_base_of_few_bits_learn():
    """In 16 bits a step of 1e-3 on a weight of 1 is rounded away."""
    model, ids = make_host("llama").bfloat16(), make_ids()
    frozen = model.model.layers[3].mlp.up_proj
    frozen.weight = nn.Parameter(frozen.weight.data.to(torch.float8_e4m3fn), requires_grad=False)
    attach(model)
    assert trainable(model, "all") == sum(
        p.numel() for p in model.parameters() if p.dtype.itemsize > 1
    )
    frozen.weight = nn.Parameter(frozen.weight.data.bfloat16(), requires_grad=False)
    trainable(model, "routers")
    before = [p.detach().clone() for p in router_parameters(model)]
    optimizer = torch.optim.AdamW(router_parameters(model), lr=1e-3, weight_decay=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    for old, new in zip(before, router_parameters(model), strict=True):
        assert new.dtype == torch.float32 and (old != new).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_and_autocast_are_close(dtype):
    model, ids = make_attached("llama"), make_ids()
    with torch.no_grad():
        expected = model(ids).logits
        with torch.autocast("cpu", dtype=dtype):
            mixed = model(ids).logits
        half = model.to(dtype)(ids).logits
    for got in (half, mixed):
        assert (got.float() - expected).abs().max() < 0.05 * expected.abs().max()


# Several processes


def a_batch():
    return make_ids(4, 9, seed=5)


def two_steps(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
    weights = (parameter.detach() for parameter in model.parameters())
    return [w.full_tensor() if isinstance(w, DTensor) else w for w in weights]


def work(rank, how, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=300),
    )
    model = make_attached("llama", dtype=torch.float64).train()
    if "checkpointed" in how:
        model.gradient_checkpointing_enable({"use_reentrant": "reentrant" in how})
        model.enable_input_require_grads()
    if "fsdp" in how:
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        assert all(isinstance(weight, DTensor) for weight in router_parameters(model))
    else:
        model = DistributedDataParallel(model)
    weights = two_steps(model, a_batch().chunk(2)[rank])
    torch.save(weights, f"{folder}/{rank}.pt")
    leave(folder)


@pytest.mark.slow
@pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")
@pytest.mark.parametrize("how", ["ddp", "fsdp", "ddp, checkpointed", "fsdp, checkpointed"])
def test_two_processes_descend_as_one(how, tmp_path):
    in_forks(work, (how, str(tmp_path)), 2)
    model = make_attached("llama", dtype=torch.float64).train()
    expected = two_steps(model, a_batch())
    before = [p.detach() for p in make_attached("llama", dtype=torch.float64).parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(before, expected, strict=True))
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
