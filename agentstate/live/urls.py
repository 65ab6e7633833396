"""Addresses that stream; the server's ASGI side answers them."""

from django.urls import path, re_path

from agentstate.live import v1, views

urlpatterns = [
    path("console", views.console, name="live-console"),
    path("v1/runs/<str:key>/events", v1.events),
    path("v1/feed", v1.feed),
    re_path(r"^v1/", v1.nowhere),
]
