"""The tenants, whose schemas are created with them, and their domains."""

from __future__ import annotations

from django_tenants.models import DomainMixin, TenantMixin


class Client(TenantMixin):
    """A tenant."""

    auto_create_schema = True


class Domain(DomainMixin):
    """A domain of a tenant."""
