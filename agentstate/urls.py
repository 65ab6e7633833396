"""Addresses: the API for workers, streams, and everything else for people."""

from importlib.util import find_spec

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = []
if find_spec("agentstate.api") and find_spec("agentstate.api.urls"):
    urlpatterns.append(path("", include("agentstate.api.urls")))
if find_spec("agentstate.live") and find_spec("agentstate.live.urls"):
    urlpatterns.append(path("live/", include("agentstate.live.urls")))
if find_spec("dashboard") and find_spec("dashboard.urls"):
    urlpatterns.append(path("", include("dashboard.urls")))

handler400 = "dashboard.views.errors.bad_request"
handler403 = "dashboard.views.errors.not_allowed"
handler404 = "dashboard.views.errors.not_found"
handler500 = "dashboard.views.errors.broken"
