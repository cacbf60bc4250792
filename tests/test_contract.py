"""What every variant must pass. One contract over the registry: a new variant is tested at once."""

import ast
import inspect
import itertools
import textwrap

import literal
import pytest
import torch
from tiny import CASES, SLOW, TINY, is_own, make, needs_compiler
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, CompileConfig, GenerationMixin

from layermem import testing
from layermem.models.registry import lookup
from layermem.ops.shared_buffer import using_naive
from layermem_bench.config import counting

# Plain arithmetic in two orders: rounding of float32 and no more.
# The operators that Inductor generates code for, run one by one.
DECOMPOSED = "aot_eager_decomp_partition"
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def causal_lm(case):
    entry, fields = case
    return make(entry.causal_lm, entry.config(**fields))


def attentive(case):
    """Return a model whose logits show what a cache holds.

    The initial queries and keys are so small that every token attends to all alike: keys that are
    wrong by 1% would change logits by less than rounding does.
    """
    model = causal_lm(case)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(20)
    return model


def name_of(entry):
    return entry.config.model_type.removeprefix("layermem_")


CHECKS = ["causal", "gradients", "cached", "checkpointing", "saved", "counts"]


@pytest.mark.parametrize("check", CHECKS)
def test_passes_the_kit(case, check):
    entry, fields = case
    getattr(testing, f"check_{check}")(lambda: entry.causal_lm(entry.config(**fields)))


def test_files_of_a_variant_of_weights_are_those_loaded(ids, tmp_path):
    """As of ``save_pretrained(variant="ema")``, beside the weights of the last step."""
    entry = lookup("lime")
    for seed, name in enumerate((None, "ema")):
        model = make(entry.causal_lm, entry.config(**TINY), seed)
        model.save_pretrained(tmp_path, variant=name)
    for loader in (AutoModelForCausalLM, type(model)):
        loaded = loader.from_pretrained(tmp_path, variant="ema")
        with torch.no_grad():
            assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert (tmp_path / "model.safetensors").is_file() and "variant" not in loaded.config.to_dict()


def test_tools_see_which_classes_generate(entry):
    assert GenerationMixin in entry.causal_lm.__bases__
    assert entry.causal_lm.can_generate()
    for other in (entry.decoder, entry.sequence_classification, entry.token_classification):
        assert not other.can_generate()


def test_equals_its_equations_written_out(case, ids):
    entry, _ = case
    transcription = literal.find(name_of(entry))
    if transcription is None:
        module = entry.variant.__module__
        assert not module.startswith("layermem."), f"tests/literal/ has no file for {module}"
        pytest.skip("a variant from outside the package without a transcription")
    model = causal_lm(case).double()
    with torch.no_grad():
        ours, theirs = model(ids).logits, transcription.logits(model, ids)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def identity_settings(entry):
    """The settings with which a variant computes what the plain decoder does."""
    if entry.variant.plain_fields is None:
        pytest.skip("no fields of this variant make it the plain decoder")
    return [entry.variant.plain_fields, *literal.plain_settings(name_of(entry))]


def test_begins_as_the_plain_decoder_with_every_parameter_alive(entry):
    """A start from which a parameter never moves makes a variant look like the plain decoder."""
    for fields in identity_settings(entry):

        def build(fields=fields):
            return entry.causal_lm(entry.config(**TINY, **fields)).double()

        testing.check_start(build, rounding=1e-11)
        testing.check_gradients(build)


def test_one_seed_gives_one_set_of_shared_weights(case):
    entry, fields = case
    torch.manual_seed(3)
    ours = entry.causal_lm(entry.config(**fields)).state_dict()
    after = torch.rand(1)
    torch.manual_seed(3)
    plain = lookup("plain")
    shared = {name: value for name, value in fields.items() if name in TINY}
    theirs = plain.causal_lm(plain.config(**shared)).state_dict()
    assert torch.equal(after, torch.rand(1)), "the variant drew from the shared random state"
    config = entry.config(**fields)
    absent = {
        f"model.layers.{layer}.self_attn.{part[0]}_proj.weight"
        for layer in range(config.num_hidden_layers)
        for part in {"key", "value"} - {*entry.variant.projects(config, layer)}
    }
    shared = {name for name in ours if not is_own(name)}
    assert shared == theirs.keys() - absent
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)


@pytest.mark.slow
def test_second_derivatives_are_those_of_the_formulas(case, ids):
    """Of a penalty on the gradient of the embeddings: torch.func differentiates the formulas."""
    model = causal_lm(case).double()
    if model.model.reads_ids:
        pytest.skip("embeddings alone are no input")
    model.config._attn_implementation = "eager"
    embeds = model.get_input_embeddings()(ids).detach()

    def loss(parameters, embeds):
        return torch.func.functional_call(
            model, parameters, kwargs={"inputs_embeds": embeds, "labels": ids}
        ).loss

    def penalty(parameters):
        return torch.func.grad(loss, argnums=1)(parameters, embeds).square().sum()

    parameters = {name: p for name, p in model.named_parameters() if "embed_tokens" not in name}
    # Of routing, the naive implementation has second derivatives.
    with using_naive():
        (gradient,) = torch.autograd.grad(
            model(inputs_embeds=embeds.requires_grad_(), labels=ids).loss, embeds, create_graph=True
        )
        got = torch.autograd.grad(gradient.square().sum(), list(parameters.values()))
    embeds = embeds.detach()
    expected = torch.func.grad(penalty)({name: p.detach() for name, p in parameters.items()})
    for (name, wanted), grad in zip(expected.items(), got, strict=True):
        torch.testing.assert_close(grad, wanted, **CLOSE, msg=name)


def test_autocast_trains_evaluates_and_decodes(case, ids):
    """Under autocast products are in bfloat16, and rope's results in float32."""
    model = causal_lm(case).train()
    expected = model(ids, labels=ids).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
        model.generate(ids, max_new_tokens=2, min_new_tokens=2, do_sample=False, pad_token_id=0)
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)


def test_the_bench_counts_the_plain_decoder(ids):
    """To which it adds what a variant says, which the kit compares with the model."""
    entry = lookup("plain")
    config = entry.config(**TINY, attn_implementation="eager")
    model = entry.causal_lm(config)
    assert model.num_parameters() == counting.count_parameters(config, entry.variant)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, use_cache=False)
    per_token = counting.count_forward_flops(config, entry.variant, ids.shape[1])
    assert counter.get_total_flops() == ids.numel() * per_token


def test_biases_are_counted(case):
    entry, fields = case
    config = entry.config(**fields, attention_bias=True, mlp_bias=True)
    with torch.device("meta"):
        model = entry.causal_lm(config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert counting.count_parameters(config, entry.variant) == expected


@pytest.mark.slow
@needs_compiler
def test_compiled_equals_eager(entry, ids):
    torch.compiler.reset()
    model = causal_lm((entry, {**TINY, "num_hidden_layers": 2})).train()
    expected = model(ids, labels=ids)
    expected.loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    # With a cache, as models come. The graph is what differs between variants; code is generated
    # for one memory and one stream.
    backend = "inductor" if name_of(entry) in ("lime", "mudd") else DECOMPOSED
    got = torch.compile(model, fullgraph=True, backend=backend)(ids, labels=ids)
    got.loss.backward()
    torch.testing.assert_close(got.logits, expected.logits, **CLOSE)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], **CLOSE, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case[0]) for case in CASES if case[2] or case[0] == "lime"]
)
def test_a_full_graph_has_no_breaks(case, ids):
    """A variant's further forms; as it comes, it is compiled as one graph above."""
    _, name, fields = case
    torch.compiler.reset()
    model = causal_lm((lookup(name), {**TINY, **fields})).train()
    compiled = torch.compile(model, fullgraph=True, backend=DECOMPOSED)
    # The backward of routes is written by hand; that of others is autograd's.
    is_routed = name in ("lime", "lime_half")
    with torch.set_grad_enabled(is_routed):
        expected, got = (run(ids, labels=ids, use_cache=False) for run in (model, compiled))
    torch.testing.assert_close(got.logits, expected.logits, **CLOSE)
    if is_routed:
        weights = list(model.parameters())
        ours, theirs = (torch.autograd.grad(out.loss, weights) for out in (got, expected))
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case[0], marks=() if case[0] == "lime-separate" else SLOW)
        for case in CASES
        if case[1].split("+")[0] in ("lime", "lime_half")
    ],
)
def test_a_decoded_token_is_a_full_graph(case, ids):
    """With a static cache, as transformers compiles it; it does so on a CPU if told to."""
    _, name, fields = case
    torch.compiler.reset()
    model = attentive((lookup(name), {**TINY, **fields}))
    compiled = CompileConfig(fullgraph=True, backend="eager")
    compiled._compile_all_devices = True
    fixed = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    got = model.generate(ids, **fixed, cache_implementation="static", compile_config=compiled)
    assert torch.equal(got, model.generate(ids, **fixed))


def test_hidden_states_and_attention_weights_are_those_of_the_layers(case, ids):
    entry, fields = case
    model = make(entry.causal_lm, entry.config(**fields, attn_implementation="eager"))
    with torch.no_grad():
        out = model(ids, output_hidden_states=True, output_attentions=True)
    n_layers = TINY["num_hidden_layers"]
    assert [tuple(h.shape) for h in out.hidden_states] == [(3, 11, 32)] * (n_layers + 1)
    assert [tuple(a.shape) for a in out.attentions] == [(3, 4, 11, 11)] * n_layers
    for weights in out.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 11))
    torch.testing.assert_close(model.lm_head(out.hidden_states[-1]), out.logits)


def test_every_config_field_is_documented(entry):
    for cls in (entry.config, *entry.config.__mro__[1:]):
        if not cls.__module__.startswith("layermem"):
            break
        if not cls.__dict__.get("__annotations__"):
            # A pair's config has the fields of its bases.
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
        for statement, after in itertools.pairwise([*body, None]):
            if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(
                statement.annotation
            ):
                documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert documented, f"{cls.__name__}.{statement.target.id} has no docstring"
