"""URLs of a project with a second admin site, which shows no queues."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import path

from horsies_django.admin import QueueAdmin, register
from horsies_django.models import Queue


class NoQueues(QueueAdmin):
    """An admin of queues that no user may view, but may add."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return True


site = admin.AdminSite("backstage")
register(site)
site.unregister(Queue)
site.register(Queue, NoQueues)

urlpatterns = [path("admin/", admin.site.urls), path("backstage/", site.urls)]
