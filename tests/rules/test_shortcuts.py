"""The sheet of keys: what is on it, and in which order."""

import pytest
from django.urls import get_resolver

from dashboard.shortcuts import SECTIONS, sections_for
from dashboard.templatetags.shortcuts import alternatives


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_a_section_stands_first_on_its_own_pages_and_every_page_is_one(section):
    names = {name for name in get_resolver("dashboard.urls").reverse_dict if isinstance(name, str)}

    assert section.pages <= names
    for page in section.pages:
        assert section in sections_for(page)[:2]
    assert len(sections_for("nothing")) == len(SECTIONS)


def test_keys_one_after_the_other_and_one_or_the_other_are_told_apart():
    assert alternatives("g r") == [["g", "r"]]
    assert alternatives("j, k") == [["j"], ["k"]]
    assert alternatives("/") == [["/"]]
