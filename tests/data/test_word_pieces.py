"""A WordPiece tokenizer that is trained on the spot."""

from transformers import AutoTokenizer

from layermem.data.tokenizers import train_word_pieces


def test_texts_are_cut_into_pieces_and_joined_as_by_bert(tmp_path):
    tokenizer = train_word_pieces(["The cat sat.", "A cat is a cat."] * 3, 60)
    encoded = tokenizer("The cat", "a CAT")
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert tokens[0] == "[CLS]" and tokens.count("[SEP]") == 2 and tokens.count("cat") == 2
    assert encoded["token_type_ids"] == [0] * (tokens.index("[SEP]") + 1) + [1] * (
        len(tokens) - tokens.index("[SEP]") - 1
    )
    assert len(tokenizer) <= 60 and tokenizer.pad_token_id == 0
    assert tokenizer.decode(encoded["input_ids"], skip_special_tokens=True) == "the cat a cat"
    assert "[UNK]" in tokenizer.convert_ids_to_tokens(tokenizer("zebra")["input_ids"])
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert dict(again("The cat", "a CAT")) == dict(encoded)


def test_the_same_texts_always_give_the_same_pieces():
    """The trainer's own order of pieces inside words changes from one training to the next."""
    texts = ["near owl then red saw six which animal colour city number"] * 3
    trained = [train_word_pieces(texts, 60).get_vocab() for _ in range(8)]
    assert all(pieces == trained[0] for pieces in trained)


def test_a_piece_inside_a_word_is_not_read_where_it_is_spelled_out():
    tokenizer = train_word_pieces(["The cat sat.", "##a #"] * 3, 60)
    assert tokenizer.tokenize("##a") == ["#", "#", "a"]
    assert tokenizer.all_special_tokens == ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
