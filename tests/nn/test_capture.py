"""What holds while work is captured. (Captures themselves need a GPU: benchmarks/gpu_check.py.)"""

import gc

import pytest

from unalike.nn import capture


@pytest.fixture
def collecting():
    before = gc.isenabled()
    yield
    (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_during_a_capture(collecting, enabled):
    """A graph that is freed meanwhile would break it."""
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(ValueError, match="within"), capture._nothing_collected():
        assert not gc.isenabled()
        raise ValueError("within")
    assert gc.isenabled() == enabled
