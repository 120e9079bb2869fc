"""Integrations with other programs: Sentry, OpenTelemetry, and the schedules of Celery beat.

The first two need the extra of the same name. Nothing else in horsies_django imports these modules,
but for the command that imports schedules of Celery beat.
"""
