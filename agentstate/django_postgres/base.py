"""The ENGINE of DATABASES: Django finds `DatabaseWrapper` in a module of this name."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import base

from agentstate.django_postgres.turns import Turns

TURNS = Turns()


class DatabaseWrapper(base.DatabaseWrapper):
    """As Django's; only connecting to a server that was away a moment ago is done by turns."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        return TURNS.take(lambda: super(DatabaseWrapper, self).get_new_connection(conn_params))
