"""The order of the data: whole epochs, from the seed alone."""

from layermem.train.sequences import DataOrder


def test_every_epoch_is_a_permutation_of_its_own():
    order = list(DataOrder(7, 21, seed=0))
    epochs = [order[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_the_length_is_kept_and_the_seed_decides():
    assert len(list(DataOrder(7, 10, 0))) == len(DataOrder(7, 10, 0)) == 10
    assert list(DataOrder(7, 10, 0)) == list(DataOrder(7, 10, 0)) != list(DataOrder(7, 10, 1))
    # A longer run begins as a shorter one.
    assert list(DataOrder(7, 20, 3))[:10] == list(DataOrder(7, 10, 3))
