"""Addresses: for workers /api, /health and /problems; streams under /live; the rest for people."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("agentstate.api.urls")),
    path("live/", include("agentstate.live.urls")),
    path("", include("dashboard.urls")),
]

# Pages for people; the API's own answers are problem+json before it comes to these.
handler400 = "dashboard.views.errors.bad_request"
handler403 = "dashboard.views.errors.not_allowed"
handler404 = "dashboard.views.errors.not_found"
handler500 = "dashboard.views.errors.broken"
