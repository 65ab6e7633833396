"""Agentstate-Deadline: what cannot begin in time is 503 and writes nothing."""

import time

import pytest
from django.db import connection

from tests.api.asking import Api, new_key
from tests.store.asking import rows


@pytest.mark.parametrize("sent", ["", "x", "0", "-1", "1.5", "1e3", "86400001", "9" * 30])
def test_a_deadline_that_cannot_be_read_is_refused(api, sent):
    api.create("42")
    answer = api.append("42", Agentstate_Deadline=sent)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "Agentstate-Deadline"
    assert api.get("/runs/42")["last_seq"] == 1


def test_a_write_that_waits_for_a_lock_gives_up_in_time_and_leaves_nothing(transactional_db):
    api = Api(new_key("fleet"))
    api.create("42")
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT FROM agentstate_run FOR UPDATE")
        began = time.monotonic()
        answer = api.append("42", Agentstate_Deadline="400")
        waited = time.monotonic() - began
        other.rollback()
    finally:
        other.close()
    assert answer.refused == (503, "unavailable")
    assert answer["retry"] == "same-request"
    assert waited < 2.5  # without it: the three seconds that a lock is waited for
    assert rows("SELECT last_seq FROM agentstate_run") == [(1,)]
    assert api.append("42", Agentstate_Deadline="10000").status == 201
