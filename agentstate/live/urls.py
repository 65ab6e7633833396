"""Addresses that stream; the server's ASGI side answers them."""

from django.urls import path

from agentstate.live import views

urlpatterns = [path("console", views.console, name="live-console")]
