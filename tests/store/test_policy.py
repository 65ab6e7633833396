"""Every column has a written policy for two writers who meet."""

from django.apps import apps

from agentstate.store.policy import POLICY, policy_of


def columns():
    for model in apps.get_app_config("agentstate").get_models():
        for field in model._meta.local_fields:
            if field.column:
                yield model._meta.model_name, field.column


def test_every_column_has_a_policy():
    missing = [f"{t}.{c}" for t, c in columns() if policy_of(t, c) is None]
    assert missing == []


def test_no_policy_is_for_a_column_that_is_gone():
    there = {f"{t}.{c}" for t, c in columns()} | {f"{t}.*" for t, c in columns()}
    assert set(POLICY) <= there


def test_who_may_write_is_said_for_each():
    known = {"holder", "worker", "operator", "admin", "system"}
    assert all(line.writers and set(line.writers) <= known for line in POLICY.values())
