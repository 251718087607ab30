from math import cos, sin

import pytest
import torch

from tinygpt.attention.rotary import rotate, rotation


def test_a_pair_is_two_channels_half_a_head_apart_and_turns_by_its_own_speed():
    x = torch.tensor([1.0, 2.0, 0.0, 3.0]).view(1, 1, 1, 4)
    turned = rotate(x, rotation(torch.tensor([5]), 4, 100.0))[0, 0, 0]
    fast, slow = 5.0, 5.0 / 10  # positions · theta^0, positions · theta^(-2/4)
    expected = [cos(fast), 2 * cos(slow) - 3 * sin(slow), sin(fast), 2 * sin(slow) + 3 * cos(slow)]
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_position_0_is_left_as_it_is():
    x = torch.randn(2, 1, 3, 8)
    assert torch.equal(rotate(x, rotation(torch.tensor([0]), 8, 10000.0)), x)


def test_a_score_depends_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(t: int, s: int) -> float:
        turned = (rotate(x, rotation(torch.tensor([i]), 16, 100.0)) for x, i in ((q, t), (k, s)))
        return torch.mul(*turned).sum().item()

    assert score(7, 4) == pytest.approx(score(103, 100), abs=1e-4)  # the angles are computed in fp32
    assert score(7, 4) != pytest.approx(score(7, 5), abs=1e-2)


def test_rows_may_have_positions_of_their_own():
    positions = torch.tensor([[0, 1, 2], [0, 0, 1]])
    x = torch.randn(2, 3, 4, 8)
    together = rotate(x, rotation(positions, 8, 10000.0))
    for i in range(2):
        assert torch.equal(together[i : i + 1], rotate(x[i : i + 1], rotation(positions[i], 8, 10000.0)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angles_of_late_positions_are_right_in_short_floats_and_under_autocast(dtype: torch.dtype):
    x = torch.ones(1, 1, 1, 8, dtype=dtype)
    position = torch.tensor([1001])
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        turned = rotate(x, rotation(position, 8, 10000.0))
    assert turned.dtype == torch.float32
    assert turned[0, 0, 0, 0].item() == pytest.approx(cos(1001) - sin(1001), abs=1e-4)
