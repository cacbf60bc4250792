"""The contract that every variant passes, as checks of any causal language model.

    from layermem import testing
    testing.check_causal(lambda: MyModel(sizes))

Each check takes a function that builds a small model, and raises ``ContractError`` with a sentence
that says what is wrong, where, and what to do. Models are causal LMs of transformers; all checks
but of the cache also take a module from token ids [B, T] to logits [B, T, V]. Counts are those of
variants of layermem.

Most checks add noise to all weights first, so that a gate of zero hides nothing and attention
attends to some tokens more than to others.

Letters: B batch, T tokens, V vocabulary.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from layermem.models.registry import lookup

Build = Callable[[], nn.Module]
# Share of the largest number up to which two results are equal: rounding of float32.
_ROUNDING = 1e-4
_TOKENS, _CHANGED = 11, 6
# Where the text of each row begins behind its padding.
_STARTS = (0, 3, 5)


class ContractError(AssertionError):
    """A model breaks the contract; the sentence says where, and what to do."""


def check_causal(build: Build) -> None:
    """Check that no token changes an earlier logit, and no forward those of the next forward."""
    model = _stirred(build)
    ids = _ids(model)
    changed = ids.clone()
    # Every token from there on is another.
    changed[:, _CHANGED:] = torch.where(ids == ids.min(), ids.max(), ids.min())[:, _CHANGED:]
    first, other, again = (_logits(model, x) for x in (ids, changed, ids))
    if wrong := _difference(again, first):
        raise ContractError(
            f"a second forward on the same token ids returns logits that differ by {wrong:.2g}"
            f"{_where(_record(model, ids), _record(model, changed, ids))}: keep nothing on a "
            "module between forwards, and draw no random numbers in evaluation"
        )
    token = (first - other).abs().amax((0, 2)) > _ROUNDING * float(first.abs().max())
    if token[:_CHANGED].any():
        one, two = ({n: _past(x) for n, x in _record(model, x).items()} for x in (ids, changed))
        raise ContractError(
            f"the logits at position {int(token.int().argmax())} change with tokens from position "
            f"{_CHANGED} on{_where(one, two)}: mask later tokens there, and take no mean or norm "
            "over tokens"
        )
    if wrong := _difference(_logits(model, ids[:1, :_CHANGED]), first[:1, :_CHANGED]):
        raise ContractError(
            f"the first {_CHANGED} logits of a text differ by {wrong:.2g} where it is alone and "
            "ends there: let nothing depend on how many tokens follow, or on other rows"
        )
    if not token[_CHANGED:].all():
        raise ContractError(
            f"the logits at position {_CHANGED + int((~token[_CHANGED:]).int().argmax())} do not "
            "change with their own token: pass the embedding on"
        )


def check_start(build: Build, plain: Build | None = None, *, rounding: float = 1e-5) -> None:
    """Check that a new model computes what ``plain`` does with the weights that both have.

    ``build`` gives the settings that claim so. For a variant, ``plain`` may be left out.
    """
    model: Any = _built(build)
    ids, of_ours = _ids(model), hasattr(model, "variant")
    if not (plain or of_ours):
        raise ContractError("pass plain=, which builds the decoder that the model should begin as")
    other = (_built(plain) if plain else _plain(model)).to(next(model.parameters()).dtype)
    other.load_state_dict(model.state_dict(), strict=False)
    if wrong := _difference(_logits(model, ids), _logits(other, ids), rounding):
        claims = model.variant.plain_fields if of_ours else None
        claimed = ", ".join(f"{name}={value!r}" for name, value in (claims or {}).items())
        mend = f"build it with {claimed} (its plain_fields), or " if claimed else ""
        raise ContractError(
            f"the logits of a new model differ from the plain decoder's by {wrong:.2g}"
            f"{_where(_record(model, ids), _record(other, ids), rounding)}: {mend}initialise what "
            "is added so that it adds nothing, or claim no such start (plain_fields = None)"
        )


def check_gradients(build: Build, *, steps: int = 2) -> None:
    """Check that every parameter of a new model gets a gradient within some steps of SGD."""
    model = _built(build).train()
    ids = _ids(model)
    called: set[nn.Module] = set()
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: called.add(module))
    waiting = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimiser = torch.optim.SGD(waiting.values(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        gradients = _gradients(model, ids)
        waiting = {n: p for n, p in waiting.items() if n not in gradients or not gradients[n].any()}
        optimiser.step()
    for name in waiting:
        owner = model.get_submodule(name.rpartition(".")[0])
        further = f" (nor do {len(waiting) - 1} others)" if len(waiting) > 1 else ""
        if name in gradients:
            reason = (
                f"its gradient is zero in {steps} steps, as where a factor beside it is zero or a "
                "softmax has one term: initialise that factor otherwise, or remove the weight"
            )
        elif owner in called:
            reason = (
                "nothing reads its output, or it is detached: use the output, or remove the weight"
            )
        else:
            reason = (
                f"the forward does not call its module, {type(owner).__name__}: call it, or do "
                "not build it"
            )
        raise ContractError(f"{name} gets no gradient{further}: {reason}")


def check_cached(build: Build) -> None:
    """Check that ``generate`` with a dynamic and a static cache computes what a forward on the
    whole text does, and beams. Two of three rows are padded on the left."""
    model: Any = _stirred(build)
    if not hasattr(model, "generate"):
        raise ContractError(f"{type(model).__name__} has no generate of transformers to check")
    ids = _ids(model)
    mask = torch.ones_like(ids)
    for row, start in enumerate(_STARTS):
        mask[row, :start] = 0
    fixed = {"attention_mask": mask, "do_sample": False, "pad_token_id": 0}
    fixed |= {"output_logits": True, "return_dict_in_generate": True}

    def generate(kind: str, tokens: int = 3, **options: Any) -> Any:
        lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        with _failing(f"generate with {kind}"):
            return model.generate(ids, **fixed, **lengths, **options)

    without = generate("left padding and no cache", use_cache=False)
    texts = [without.sequences[row : row + 1, start:] for row, start in enumerate(_STARTS)]
    whole = torch.stack([_logits(model, text)[0, -4:-1] for text in texts])
    written = {"no": without.logits}
    static: Any = {"cache_implementation": "static", "disable_compile": True}
    for kind, options in (("a dynamic", {}), ("a static", static)):
        written[kind] = generate(f"{kind} cache", use_cache=True, **options).logits
    for kind, logits in written.items():
        got = torch.stack(logits, 1)
        # By row and new token: what comes after the first difference continues another text.
        far = (got - whole).abs().amax(-1) > _ROUNDING * float(whole.abs().max())
        if not far.any():
            continue
        token = int(far.any(0).int().argmax())
        row = int(far[:, token].int().argmax())
        padded = " and left padding" if row else ""
        cause = (
            "count positions from each text's first token, and hide padding from attention"
            if row
            else "store what attention reads, of new tokens only, and mask empty places"
        )
        raise ContractError(
            f"with {kind} cache{padded} the logits of new token {token} differ by "
            f"{float((got - whole)[row, token].abs().max()):.2g} from those of a forward on the "
            f"whole text: {cause}"
        )
    one, other = (
        generate("beams", 2, num_beams=2, output_scores=True, use_cache=cached)
        for cached in (True, False)
    )
    wrong = _difference(one.sequences_scores, other.sequences_scores)
    if wrong or not torch.equal(one.sequences, other.sequences):
        raise ContractError(
            f"with a dynamic cache the scores of beams differ by {wrong:.2g} from those without a "
            "cache: keep all that belongs to a row in the cache, which reorders it"
        )


def check_checkpointing(
    build: Build,
    *,
    enable: Callable[[nn.Module], Any] | None = None,
) -> None:
    """Check that activation checkpointing computes the same loss and gradients, and runs again.

    ``enable`` turns it on; for models of transformers it may be left out, and both forms of
    checkpointing are checked.
    """
    model: Any = _stirred(build).train()
    ids = _ids(model)
    if enable is None and not hasattr(model, "gradient_checkpointing_enable"):
        raise ContractError(
            f"{type(model).__name__} has no gradient_checkpointing_enable: pass enable=, "
            "which turns it on"
        )
    calls: list[nn.Module] = []
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: calls.append(module))
    expected = _gradients(model, ids)
    usual = len(calls)
    for reentrant in (False, True) if enable is None else (False,):
        if enable is None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        else:
            enable(model)
        form = f"with checkpointing (use_reentrant={reentrant})" if enable is None else "with it on"
        calls.clear()
        with _failing(f"a training step {form}"):
            got = _gradients(model, ids)
        if len(calls) == usual:
            raise ContractError(f"{form} no module runs again: wrap each layer in a checkpoint")
        # Rounding is of all gradients: that of one may cancel to nearly nothing.
        least = 0.1 * _ROUNDING * max(float(g.abs().max()) for g in expected.values())
        for name, gradient in reversed(expected.items()):
            if name not in got or _difference(got[name], gradient) > least:
                raise ContractError(
                    f"{form} the gradient of {name} differs: a layer that runs again must compute "
                    "the same, so change no list, tensor or module that outlives its forward"
                )


def check_saved(build: Build) -> None:
    """Check that a model computes the same after it is saved and loaded."""
    model = _stirred(build)
    ids = _ids(model)
    name = type(model).__name__
    with tempfile.TemporaryDirectory() as folder, _failing(f"saving and loading {name}"):
        if isinstance(model, PreTrainedModel):
            model.save_pretrained(folder)
            loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype)
        else:
            loaded = _built(build, seed=1)
            loaded.load_state_dict(model.state_dict())
    if type(loaded) is not type(model):
        raise ContractError(f"{name} loads as {type(loaded).__name__}: register it with AutoModel")
    wrong = _difference(_logits(loaded.eval(), ids), _logits(model, ids))
    after = {**dict(loaded.named_parameters()), **dict(loaded.named_buffers())}
    tensors = [*model.named_parameters(), *model.named_buffers()] if wrong else ()
    for key, tensor in tensors:
        if key not in after or not torch.equal(after[key], tensor):
            raise ContractError(
                f"{key} is not what was saved: register it as a parameter or a persistent buffer, "
                "or compute it from the config alone"
            )
    if wrong:
        raise ContractError(
            f"the loaded model's logits differ by {wrong:.2g}"
            f"{_where(_record(loaded, ids), _record(model, ids))}: what is computed there depends "
            "on an attribute that is not saved; make it a buffer or a field of the config"
        )


def check_counts(build: Build) -> None:
    """Check the number of parameters of a variant, and the FLOPs of a forward, by its closed forms:
    the plain decoder's, with ``extra_parameters`` and ``extra_flops``."""
    model: Any = _built(build)
    if not hasattr(model, "variant"):
        raise ContractError(f"{type(model).__name__} is no variant of layermem with closed forms")
    ids, plain = _ids(model), _plain(model)
    model.config._attn_implementation = plain.config._attn_implementation = "eager"
    shared = {name for name, _ in plain.named_parameters()}
    own = [f"{n} {list(p.shape)}" for n, p in model.named_parameters() if n not in shared]
    added = f"beyond the plain decoder it has {', '.join(own) or 'no parameter'}"
    parameters = _size(plain) + model.variant.extra_parameters(model.config)
    if _size(model) != parameters:
        raise ContractError(
            f"the model has {_size(model)} parameters, not {parameters}: correct the closed form "
            f"(extra_parameters); {added}"
        )
    flops = _flops(plain, ids) + ids.numel() * model.variant.extra_flops(model.config)
    if (counted := _flops(model, ids)) != flops:
        raise ContractError(
            f"a forward on {ids.numel()} tokens takes {counted} FLOPs, not {flops}: correct the "
            f"closed form (extra_flops); {added}"
        )


def _built(build: Build, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build().eval()


def _stirred(build: Build) -> nn.Module:
    """Return a model whose every weight has an effect that rounding does not hide."""
    model, noise = _built(build), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.1 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5
            parameter.add_(scale * torch.randn(parameter.shape, generator=noise))
    return model


def _plain(model: Any) -> Any:
    entry = lookup("plain")
    given = {field.name: getattr(model.config, field.name) for field in fields(entry.config)}
    return entry.causal_lm(entry.config(**given)).eval()


def _ids(model: Any) -> Tensor:
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        size = config.get_text_config().vocab_size
    else:
        # A table of positions may be among them, or a small one of kinds of tokens.
        tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
        size = min(n for n in tables if n > 2)
    return torch.randint(1, size, (3, _TOKENS), generator=torch.Generator().manual_seed(1))


def _call(model: nn.Module, ids: Tensor, **options: Any) -> Any:
    if isinstance(model, PreTrainedModel):
        return model(ids, **{"use_cache": False, **options})
    return model(ids)


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        out = _call(model, ids)
    out = out[0] if isinstance(out, tuple) else out
    return out.logits if hasattr(out, "logits") else out


def _gradients(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the loss of next tokens, of the parameters that have one."""
    torch.manual_seed(0)
    model.zero_grad()
    if isinstance(model, PreTrainedModel):
        loss = _call(model, ids, labels=ids).loss
    else:
        loss = nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def _difference(one: Tensor, other: Tensor, rounding: float = _ROUNDING) -> float:
    """Return the largest difference, 0 where it is no more than rounding."""
    wrong = float((one - other).abs().max())
    return wrong if not wrong <= rounding * float(other.abs().max()) else 0.0


def _record(model: nn.Module, *texts: Tensor) -> dict[str, Tensor]:
    """Return the first tensor that each module returns on the last of some texts."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, out: Any) -> None:
        while isinstance(out, (tuple, list)) and out:
            out = out[0]
        if isinstance(out, Tensor) and out.is_floating_point():
            seen[name] = out.detach()

    named = [(name, module) for name, module in model.named_modules() if name]
    hooks = [m.register_forward_hook(lambda *a, name=name: keep(name, a[-1])) for name, m in named]
    for text in texts:
        _logits(model, text)
    for hook in hooks:
        hook.remove()
    return seen


def _past(x: Tensor) -> Tensor:
    for dim in range(x.ndim):
        x = x.narrow(dim, 0, _CHANGED) if x.shape[dim] == _TOKENS else x
    return x


def _where(one: dict[str, Tensor], other: dict[str, Tensor], rounding: float = _ROUNDING) -> str:
    """Return the first module whose output differs, as a part of a sentence."""
    for name, x in one.items():
        same = name in other and x.shape == other[name].shape
        if same and x.numel() and _difference(x, other[name], rounding):
            return f", first in the output of {name}"
    return ""


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        said = str(error).strip().split("\n")[0]
        raise ContractError(f"{what} fails with {type(error).__name__}: {said}") from error


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _flops(model: nn.Module, ids: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        _logits(model, ids)
    return counter.get_total_flops()
