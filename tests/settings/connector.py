"""Settings of a project whose backend opens connections itself, and whose receiver chooses the
schema.
"""

from __future__ import annotations

from tests.apps.connector.base import INSTANCE
from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

CONNECTOR_HOST = DATABASES["default"]["HOST"]
DATABASES["default"] |= {"ENGINE": "tests.apps.connector", "HOST": INSTANCE}
INSTALLED_APPS = [*INSTALLED_APPS, "tests.apps.connector"]
