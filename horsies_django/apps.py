"""The configuration of the Django app.

The label ``horsies`` must not change, because tables, migrations and permissions have it in their
names.
"""

from __future__ import annotations

from importlib import import_module

import django
from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class HorsiesConfig(AppConfig):
    """The app, which registers the system checks and the receivers of ``post_migrate``.

    Its ``ready`` starts nothing, makes no queries and imports no tasks.
    """

    name = "horsies_django"
    label = "horsies"
    verbose_name = _("Horsies")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Imported here, because these modules need the app registry.
        from horsies_django import checks
        from horsies_django.backends.options import named_modules
        from horsies_django.conf.section import CHECK_TAG
        from horsies_django.management.migrating import complete_tables
        from horsies_django.queues import declare_queues
        from horsies_django.tasks import registry

        if django.VERSION >= (6, 0):
            import_module("django.tasks")  # the import registers Django's check of TASKS

        registry.more_modules = named_modules

        for check in (checks.check_settings, checks.check_databases, checks.check_tasks):
            register(check, CHECK_TAG)
        # This check connects to the database. With only this tag, it is run only by
        # "check --database" and "migrate".
        register(checks.check_schema, Tags.database)

        post_migrate.connect(complete_tables, sender=self, dispatch_uid="horsies_complete_tables")
        post_migrate.connect(declare_queues, sender=self, dispatch_uid="horsies_declare_queues")
