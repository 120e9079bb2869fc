"""What the tests of the admin share."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client


@pytest.fixture
def boss(client: Client) -> Client:
    """A superuser's browser."""
    client.force_login(User.objects.create_superuser("boss"))
    return client
