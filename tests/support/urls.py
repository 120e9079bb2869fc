"""URLs of the test project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("horsies/", include("horsies_django.urls"))]
