"""The order of the data: whole epochs, from the seed alone."""

from layermem.train.data_order import Order


def test_every_epoch_is_a_permutation_of_its_own():
    order = list(Order(7, 21, seed=0))
    epochs = [order[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_the_length_is_kept_and_the_seed_decides():
    assert len(list(Order(7, 10, 0))) == len(Order(7, 10, 0)) == 10
    assert list(Order(7, 10, 0)) == list(Order(7, 10, 0)) != list(Order(7, 10, 1))
    # A longer run begins as a shorter one.
    assert list(Order(7, 20, 3))[:10] == list(Order(7, 10, 3))
