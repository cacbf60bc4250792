"""Test that rows on disk come back as they were appended, and that none are left behind."""

import numpy as np
import pytest

from layermem.analysis.disk_rows import DiskRows


def test_rows_come_back_as_they_were_appended():
    rng = np.random.default_rng(0)
    rows = {key: rng.normal(size=(7, 3 + key)).astype(np.float32) for key in range(3)}
    with DiskRows() as stored:
        for i in range(7):
            for key, array in rows.items():
                stored.append(key, array[i])
            # Reading in between loses nothing.
            np.testing.assert_array_equal(stored.read(1), rows[1][: i + 1])
        for key, array in rows.items():
            np.testing.assert_array_equal(stored.read(key), array)
        with pytest.raises(ValueError, match="rows of 0 hold 3 numbers, got 4"):
            stored.append(0, np.zeros(4))
    with pytest.raises(KeyError):
        stored.read(0)


def test_a_view_with_strides_is_kept_by_value():
    array = np.arange(12.0).reshape(3, 4)
    with DiskRows() as stored:
        stored.append("column", array[:, 1])
        np.testing.assert_array_equal(stored.read("column"), [[1, 5, 9]])
