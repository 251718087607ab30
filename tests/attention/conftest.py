import pytest

from tests.attention.kernels import TRAINABLE, configured
from tests.conftest import choices
from tinygpt.attention import Kernel


@pytest.fixture(params=choices("attention"))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return configured(request.param)


@pytest.fixture(params=TRAINABLE)
def trainable(request: pytest.FixtureRequest) -> Kernel:
    """A kernel with a backward pass on a CPU."""
    return configured(request.param)
