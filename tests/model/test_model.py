"""The rules decide as the plain model does; a million steps: `python -m tests.model.driver`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.driver import KINDS, Driver, drive


@pytest.mark.parametrize("seed", [7, 8])
def test_tens_of_thousands_of_steps_show_no_difference(seed):
    outcomes = drive(seed, 20_000)
    assert {name.split()[0] for name in outcomes if name.endswith(" ok")} == set(KINDS)


class Choices:
    """The driver's random numbers, drawn by hypothesis: a difference shrinks to a short story."""

    def __init__(self, data):
        self.data = data

    def random(self):
        return self.data.draw(st.floats(0, 1, exclude_max=True))

    def choice(self, among):
        return self.data.draw(st.sampled_from(among))

    def choices(self, among, weights):
        return [self.data.draw(st.sampled_from(among))]


def tell_a_story(data):
    driver = Driver(seed=0)
    driver.random = Choices(data)
    for _ in range(data.draw(st.integers(1, 60))):
        driver.step()


@settings(max_examples=50)
@given(data=st.data())
def test_a_difference_would_shrink_to_a_short_story(data):
    tell_a_story(data)


@pytest.mark.long
@pytest.mark.many
@settings(max_examples=600)
@given(data=st.data())
def test_a_difference_in_some_ten_thousand_steps_would_shrink_too(data):
    tell_a_story(data)
