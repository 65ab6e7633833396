"""Addresses: for workers /api, /health and /problems; streams under /live; the rest for people."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("agentstate.api.urls")),
    path("live/", include("agentstate.live.urls")),
    path("", include("dashboard.urls")),
]
