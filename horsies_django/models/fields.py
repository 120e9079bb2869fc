"""Fields for stored JSON, arrays and times, and a function that makes a datetime aware."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.expressions import Col
from django.utils import timezone
from psycopg.types.json import Json, Jsonb

if TYPE_CHECKING:
    AnyField = models.Field[Any, Any]
    DateTimeField = models.DateTimeField[Any, Any]
else:
    AnyField = models.Field
    DateTimeField = models.DateTimeField


class IntegerArray(AnyField):
    """An array of integers.

    Django's own field requires the app ``django.contrib.postgres`` since Django 6.
    """

    def db_type(self, connection: Any) -> str:
        return "integer[]"

    def value_to_string(self, obj: Any) -> str:
        """Return the array as JSON, for a dump."""
        return json.dumps(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        """Return an array, which is JSON text in a dump."""
        return json.loads(value) if isinstance(value, str) else value


class StoredJSON(models.JSONField):
    """A JSON value, or its text if Python cannot parse it.

    Python cannot parse thousands of nested levels, or a number with thousands of digits. Rows with
    such values can nevertheless be listed and shown.
    """

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the value, or its text if it cannot be parsed."""
        try:
            return (
                super().from_db_value(value, expression, connection)
                if isinstance(value, str)
                else value
            )
        except (RecursionError, ValueError):
            return value

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Return None as JSON's null for a column that is never NULL.

        Such a None comes from ``loaddata``, and was JSON's null in the dump.
        """
        return super().get_db_prep_save(
            models.Value(None, self) if value is None and not self.null else value, connection
        )

    def deconstruct(self) -> Any:
        """Return the field as a plain JSONField, for migrations."""
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class KeptJSON(StoredJSON):
    """A JSON value that is stored as it was written.

    The migration makes its column a domain over json. jsonb would change the order of the keys of
    an object, and 1e16 would become a whole number. Lookups work as with jsonb, because they cast
    the column to it.
    """

    def get_col(self, alias: str, output_field: Any = None) -> Any:
        """Return the column for use in queries."""
        return KeptCol(alias, self, output_field)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Return the value as json, which keeps its text."""
        prepared = super().get_db_prep_save(value, connection)
        return Json(prepared.obj, prepared.dumps) if isinstance(prepared, Jsonb) else prepared


class KeptCol(Col):
    """A column of KeptJSON: cast to jsonb in conditions and expressions, and text for Python."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return the column as jsonb."""
        sql, params = super().as_sql(compiler, connection)
        return f"{sql}::jsonb", params

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        """Return the column as text."""
        column, params = super().as_sql(compiler, compiler.connection)
        return f"{column}::text", params


class Moment(DateTimeField):
    """A time. Times that Python does not have, such as infinity, are read as the nearest ones.

    It is for columns that workers write for each task, which no trigger checks: one odd row must
    not break a list. If ``values_list`` selects such a column and the rows are ordered by it, it
    has to select ``F(column)``. Otherwise Django orders by the selected expression, which has no
    index.
    """

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        """Return the expression that selects the column.

        Conditions and orders use the column itself.
        """
        return f"horsies_known_time({sql})", params

    def deconstruct(self) -> Any:
        """Return the field as a plain DateTimeField, for migrations."""
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs


def aware(value: dt.datetime) -> dt.datetime:
    """Return an aware datetime, because the ORM returns naive ones if USE_TZ is off."""
    return timezone.make_aware(value) if timezone.is_naive(value) else value
