"""The Django app. Its label ``horsies`` names its tables, migrations and permissions for ever."""

from __future__ import annotations

from importlib import import_module

import django
from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class HorsiesConfig(AppConfig):
    """Registers the system checks and what ``migrate`` does besides.

    Starts nothing, queries nothing, imports no tasks.
    """

    name = "horsies_django"
    label = "horsies"
    verbose_name = _("Horsies")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Only now: these import modules that need the app registry.
        from horsies_django import checks
        from horsies_django.backends.options import named_modules
        from horsies_django.management.migrating import complete_tables
        from horsies_django.queues import declare_queues
        from horsies_django.tasks import registry

        if django.VERSION >= (6, 0):
            import_module("django.tasks")  # registers Django's check of TASKS

        registry.more_modules = named_modules

        for check in (checks.check_settings, checks.check_databases, checks.check_tasks):
            register(check, checks.TAG)
        # It connects, so it has no other tag: only "check --database" and "migrate" run it.
        register(checks.check_schema, Tags.database)

        post_migrate.connect(complete_tables, sender=self, dispatch_uid="horsies_complete_tables")
        post_migrate.connect(declare_queues, sender=self, dispatch_uid="horsies_declare_queues")
