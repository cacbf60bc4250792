"""Rows come back as they were put, whatever the order of asking; nothing is left behind."""

import numpy as np
import pytest

from layermem.analysis.shelf import Shelf


def test_rows_come_back_as_they_were_put():
    rng = np.random.default_rng(0)
    rows = {key: rng.normal(size=(7, 3 + key)).astype(np.float32) for key in range(3)}
    with Shelf() as shelf:
        for i in range(7):
            for key, array in rows.items():
                shelf.put(key, array[i])
            # Looking in between loses nothing.
            np.testing.assert_array_equal(shelf.get(1), rows[1][: i + 1])
        for key, array in rows.items():
            np.testing.assert_array_equal(shelf.get(key), array)
        with pytest.raises(ValueError, match="rows of 0 hold 3 numbers, got 4"):
            shelf.put(0, np.zeros(4))
    with pytest.raises(KeyError):
        shelf.get(0)


def test_a_view_with_strides_is_kept_by_value():
    array = np.arange(12.0).reshape(3, 4)
    with Shelf() as shelf:
        shelf.put("column", array[:, 1])
        np.testing.assert_array_equal(shelf.get("column"), [[1, 5, 9]])
