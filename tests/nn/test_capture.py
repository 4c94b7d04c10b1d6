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


def test_the_last_of_two_captures_collects_again(collecting):
    gc.enable()
    one, two = capture._nothing_collected(), capture._nothing_collected()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert not gc.isenabled()
    two.__exit__(None, None, None)
    assert gc.isenabled()
