"""What workers speak with, and nothing else: the console's modules need not be importable."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("agentstate.api.urls")),
    path("live/", include("agentstate.live.urls")),
]
