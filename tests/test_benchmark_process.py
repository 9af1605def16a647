"""Peak memory is a program's own: what its parent had does not count."""

import subprocess
import sys

import numpy as np
import pytest

from pipelines.benchmarks.process import STATUS, peak_mib


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell a program's own peak")
def test_a_child_s_peak_is_its_own_and_stays_when_memory_is_given_back():
    mine = np.ones((300, 1 << 20), np.uint8)
    assert peak_mib() > 300
    code = "from pipelines.benchmarks.process import peak_mib as peak"
    code += "; before = peak(); one = b'1' * (80 << 20); del one; print(before, peak())"
    said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    before, after = map(float, said)
    assert before < 100
    assert 75 < after - before < 100
    assert mine.size
