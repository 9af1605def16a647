import os

import numpy as np
import pytest

from parcellation.errors import InputMissing
from parcellation.timeseries import open_bold
from tests.run_files import RNG, cortex, everything, plain_run, write_cifti


@pytest.fixture
def plain(tmp_path):
    return plain_run(tmp_path / "run.dtseries.nii")


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
@pytest.mark.parametrize("index", [[], [0], [3, 4, 5, 19, 20, 34], [34], range(35)])
def test_blocks_hold_what_was_asked_for(plain, block, index):
    path, values = plain
    bold, index = open_bold((path,)), np.array(index, int)
    wanted = np.delete(values, range(20, 27), axis=0)[index]
    np.testing.assert_array_equal(everything(bold, block, index), wanted)
    assert max((len(series) for _, series in bold.rows(index, block)), default=0) <= block


def test_a_block_spans_few_rows_and_wide_gaps_are_not_read(tmp_path):
    values = RNG.normal(size=(200, 3000)).astype(np.float32)
    path = write_cifti(tmp_path / "run.dtseries.nii", values, cortex(range(200), "LEFT"))
    parts = [(part.start, part.stop) for part, _ in open_bold((path,)).rows(np.array([0, 3, 100, 101, 130]), 20)]
    assert parts == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize("index", [[2, 1], [1, 1], [-1, 2], [34, 35]])
def test_positions_out_of_order_or_range_are_refused(plain, index):
    with pytest.raises(ValueError, match="strictly increasing positions below 35"):
        list(open_bold((plain[0],)).rows(np.array(index)))


def test_missing_files_and_links(tmp_path):
    with pytest.raises(InputMissing, match="no such file"):
        open_bold((tmp_path / "a.dtseries.nii",))
    os.symlink(tmp_path / "content", tmp_path / "b.mgz")
    with pytest.raises(InputMissing, match="datalad get"):
        open_bold((tmp_path / "b.mgz", tmp_path / "b.mgz"))
