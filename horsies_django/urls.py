"""The URLs for monitoring.

Add them to a URLconf by ``path("horsies/", include("horsies_django.urls"))``.
"""

from __future__ import annotations

from django.urls import path

from horsies_django import views

app_name = "horsies"
urlpatterns = [
    path("status/", views.status, name="status"),
    path("metrics/", views.metrics, name="metrics"),
]
