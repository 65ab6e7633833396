"""The Django app: it has no tables, only the command that writes docs/problems.md."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "agentstate.api"
    label = "agentstate_api"
