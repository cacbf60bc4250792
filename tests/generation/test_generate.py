"""`TextGenerator`: batches equal single prompts, draws, ends, chats, what is refused."""

import json

import pytest
import torch
from stories import STORIES, needs_stories, stories
from tiny import SLOW, TINY
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
)

from layermem.generation.decoding import Decoder, NoiseOfPrompts, RepetitionPenalty
from layermem.generation.generation import TextGenerator, batches
from layermem.generation.prompts import (
    Prompt,
    TextStart,
    check_prompts,
    encode_prompts,
    prompts_of_texts,
)
from layermem.models.registry import lookup
from layermem_base.generation_settings import GenerationSettings

TEXTS = ("a b c", "d", "e f g h a b c d e", "h g", "c c c c")


@pytest.fixture
def tokenizer(tokenizer):
    """A word for each id of the models, so that texts tell all tokens apart."""
    tokenizer.add_tokens([f"w{i}" for i in range(len(tokenizer), TINY["vocab_size"])])
    return tokenizer


def make_model(name, **config):
    """Return a random model whose continuations differ from prompt to prompt."""
    torch.manual_seed(3)
    if name == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=61, **sizes, initializer_range=0.4))
    else:
        entry = lookup(name)
        model = entry.causal_lm(entry.config(**TINY, initializer_range=0.4))
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2)
    for field, value in config.items():
        setattr(model.generation_config, field, value)
    return model.eval()


def run(model, tokenizer, texts=TEXTS, **settings):
    """Return the continuations of texts in their order."""
    settings = GenerationSettings(**{"max_new_tokens": 12, **settings})
    generator = TextGenerator(model, tokenizer, settings)
    prompts = encode_prompts(tokenizer, prompts_of_texts(texts), chat=False)
    done = {}
    for batch in batches(prompts, settings.batch_size):
        for prompt, continuation in zip(batch, generator.continue_batch(batch), strict=True):
            done[prompt.index] = continuation
    return [done[i] for i in range(len(texts))]


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("lime", "dynamic"),
        ("lime", "static"),
        ("gpt2", "dynamic"),
        pytest.param("mudd", "static", marks=SLOW),
        pytest.param("lime_hidden", "static", marks=SLOW),
    ],
)
def test_batches_equal_single_prompts(name, cache, tokenizer):
    model = make_model(name)
    done = run(model, tokenizer, batch_size=3, cache=cache)
    assert len({each.text for each in done}) == len(TEXTS)
    for text, continuation in zip(TEXTS, done, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        out = model.generate(**inputs, max_new_tokens=12, do_sample=False, pad_token_id=0)
        new = out[0, inputs["input_ids"].shape[1] :].tolist()
        new = new[: new.index(2)] if 2 in new else new
        assert continuation.tokens == len(new)
        assert continuation.text.split() == tokenizer.decode(new, skip_special_tokens=True).split()


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": True, "temperature": 1.5, "top_p": 0.9, "top_k": 9, "seed": 7},
        {"num_beams": 2, "repetition_penalty": 1.3, "stop": ("b", "a")},
    ],
    ids=str,
)
def test_nothing_depends_on_the_batch(settings, tokenizer):
    model = make_model("lime")
    alone = run(model, tokenizer, **settings, batch_size=1)
    assert run(model, tokenizer, **settings, batch_size=3) == alone
    assert len({each.text for each in alone}) > 1
    assert alone != run(model, tokenizer)


def test_draws_have_the_probabilities_of_the_model():
    """Of 4,000 prompts, and again of as many steps of one prompt."""
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf])
    n = 4000
    for noise, rows, steps in (
        (NoiseOfPrompts(5, range(n)), n, 1),
        (NoiseOfPrompts(5, [0]), 1, n),
    ):
        ids = torch.zeros(rows, 1, dtype=torch.long)
        draws = [noise(ids, scores.expand(rows, -1)).argmax(-1) for _ in range(steps)]
        shares = torch.cat(draws).bincount(minlength=5) / n
        # Four standard errors of a share.
        assert (shares - scores.softmax(-1)).abs().max() < 4 * 0.5 / n**0.5
    first, again, other = (NoiseOfPrompts(s, [1])(ids, scores[None]) for s in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_padding_is_no_repetition():
    """Scores equal those of transformers for each row alone, also of the token of the padding."""
    padding, beams, new = 0, 2, torch.tensor([[4], [6]])
    prompts = torch.tensor([[padding, padding, 5], [3, 7, 3]])
    scores = torch.linspace(-1, 2, 16).reshape(2, 8).repeat_interleave(beams, dim=0)
    rows = torch.cat((prompts, new), dim=1).repeat_interleave(beams, dim=0)
    out = RepetitionPenalty(1.5, prompts != padding)(rows, scores)
    theirs = RepetitionPenaltyLogitsProcessor(1.5)
    for row, ids in enumerate(rows):
        alone = ids[ids != padding][None]
        assert torch.equal(out[row : row + 1], theirs(alone, scores[row : row + 1]))


def test_what_the_models_own_config_says_is_taken(tokenizer):
    own_settings = {"repetition_penalty": 1.8, "temperature": 1.5, "top_k": 4}
    model, own = make_model("lime"), make_model("lime", **own_settings, do_sample=True)
    penalty = run(model, tokenizer, repetition_penalty=1.8)
    drawn = run(model, tokenizer, do_sample=True, **own_settings)
    assert run(own, tokenizer) == penalty
    assert run(own, tokenizer, do_sample=True) == drawn != penalty
    assert run(own, tokenizer, repetition_penalty=1.0) == run(model, tokenizer)


def test_ends(tokenizer):
    model = make_model("lime")
    whole = run(model, tokenizer, ["a b c"])[0]
    assert (whole.reason, whole.tokens) == ("length", 12)
    word = whole.text.split()[-1]
    first = whole.text.split().index(word)
    (cut,) = run(model, tokenizer, ["a b c"], stop=("never", word))
    assert (cut.reason, cut.tokens >= first + 1) == ("stop", True)
    assert cut.text == whole.text[: whole.text.index(word)]


def test_a_special_token_ends_as_a_stop_text(tokenizer):
    model = make_model("lime")
    (whole,) = run(model, tokenizer, ["a b c"])
    word = whole.text.split()[5]
    # The same vocabulary, in which the word is left out of texts.
    tokenizer.add_special_tokens({"additional_special_tokens": [word]})
    (cut,) = run(model, tokenizer, ["a b c"], stop=("never", word))
    before = whole.text.split()[: whole.text.split().index(word)]
    assert (cut.reason, cut.tokens) == ("stop", len(before) + 1)
    assert cut.text.split() == before


def test_a_stop_text_that_begins_with_a_space_ends_at_the_first_token():
    pieces = ["<unk>", "</s>", "▁Q", "▁the", "▁END"]
    raw = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    # Llama-2's decoder, which strips the space of the first token.
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    decoder = Decoder(tokenizer, (" END",), [1])
    for ids, text in (([4, 3], ""), ([3, 4, 3], " the"), ([3] * 9 + [4], " the" * 9)):
        continuation = decoder.cut([2], ids)
        assert (continuation.reason, continuation.text) == ("stop", text)


@needs_stories
def test_a_story_is_told_to_the_letter_and_ends_as_in_llama2c(tmp_path):
    stories(tmp_path / "hf")
    expected = json.loads(STORIES.with_name("reference_greedy.json").read_text())
    count = len(expected["greedy_ids_from_bos"]) - 1
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    start = "Once upon a time, there was a little girl named Lily."
    texts = [start, "Tom had a ball", "The dog", ""]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    (story,) = run(model, tokenizer, [""], max_new_tokens=count)
    assert story.text == expected["text"]
    alone = run(model, tokenizer, texts, batch_size=1, max_new_tokens=40)
    assert run(model, tokenizer, texts, batch_size=4, max_new_tokens=40) == alone
    # What is generated continues the prompt's text, its first space included.
    assert expected["text"].startswith(f" {start}{alone[0].text}")
    (cut,) = run(model, tokenizer, [start], stop=(" big, red ball",), max_new_tokens=60)
    assert expected["text"].startswith(f" {start}{cut.text} big, red ball")


TEMPLATE = (
    "{% for m in messages %}{{ 'd' if m.role == 'user' else m.role[0] }} {{ m.content }} "
    "{% endfor %}"
    "{% if add_generation_prompt %}h{% endif %}"
)


def test_chats(tokenizer):
    chat = [{"role": "a", "content": "c"}]
    prompts = [*prompts_of_texts(["a b"]), Prompt(index=1, content=chat, where="prompt 2")]
    with pytest.raises(ValueError, match="chat template"):
        encode_prompts(tokenizer, prompts, chat=True)
    tokenizer.chat_template = TEMPLATE
    encoded = encode_prompts(tokenizer, prompts, chat=True)
    plain = encode_prompts(tokenizer, prompts_of_texts(["d a b h", "a c h"]), chat=False)
    assert [prompt.ids for prompt in encoded] == [prompt.ids for prompt in plain]


@pytest.mark.parametrize("options", [{"do_sample": True}, {"num_beams": 2}], ids=str)
def test_nan_is_no_score(options, tokenizer):
    model = make_model("lime")
    model.model.layers[1].mlp.down_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        run(model, tokenizer, TEXTS[:1], **options)


def test_prompts_that_a_model_cannot_read_are_refused(tokenizer):
    config = make_model("lime").config
    check_prompts(encode_prompts(tokenizer, prompts_of_texts(["a"]), chat=False), config, 10)
    tokenizer.add_tokens(["more"])
    for text, named in (("a more", "prompt 1 has token 61"), ("a " * 60, "60 tokens")):
        prompts = encode_prompts(tokenizer, prompts_of_texts([text]), chat=False)
        with pytest.raises(ValueError, match=named):
            check_prompts(prompts, config, 10)


def test_an_end_token_that_the_tokenizer_adds_is_left_out(tokenizer):
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    prompts = encode_prompts(tokenizer, prompts_of_texts(["a", "", "a </s>"]), chat=False)
    assert [prompt.ids for prompt in prompts] == [(1, 4), (1,), (1, 4, 2, 2)]


def test_a_model_is_read_behind_what_it_has_learnt(tokenizer):
    """Blocks of a run on text have the end token before a document, and never a BOS."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    prompts = prompts_of_texts(["a", ""])
    start = TextStart(added=False, first=2)
    encoded = encode_prompts(tokenizer, prompts, chat=False, start=start)
    assert [prompt.ids for prompt in encoded] == [(4,), (2,)]
    # Where documents were kept apart, nothing stood before them.
    with pytest.raises(ValueError, match="is empty, and there is no BOS or EOS token"):
        encode_prompts(tokenizer, prompts, chat=False, start=TextStart(added=False))


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_a_prompt_without_tokens_is_refused(tokenizer, chat):
    """The model would go on with a sign for all that it does not know."""
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(ValueError, match="prompt 2.* has no token for what follows 'a'"):
        encode_prompts(tokenizer, prompts_of_texts(["a b", "a × b"]), chat=chat)
    encode_prompts(tokenizer, prompts_of_texts([f"a {tokenizer.unk_token} b"]), chat=chat)


@pytest.mark.parametrize(
    "own",
    [
        {"suppress_tokens": [4, 5, 6, 7]},
        {"max_time": 1e-9},
        {"guidance_scale": 3.0},
    ],
    ids=str,
)
def test_greedy_tokens_are_the_most_probable_whatever_the_model_says(own, tokenizer):
    expected = run(make_model("lime"), tokenizer)
    assert run(make_model("lime", **own), tokenizer) == expected
