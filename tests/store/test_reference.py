"""The docs say what the tables in the code say."""

from django.conf import settings

from agentstate.store.policy import Policy
from agentstate.store.reference import MEANINGS, store_docs


def test_the_page_is_the_tables():
    written = (settings.BASE_DIR / "docs" / "store.md").read_text()
    assert written == store_docs(), "run ./run manage write_store_docs"


def test_every_policy_is_explained():
    assert set(MEANINGS) == set(Policy)
