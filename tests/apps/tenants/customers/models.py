"""A tenant, whose schema is created with it, and its names on the web."""

from __future__ import annotations

from django_tenants.models import DomainMixin, TenantMixin


class Client(TenantMixin):
    """A tenant."""

    auto_create_schema = True


class Domain(DomainMixin):
    """A name of a tenant."""
