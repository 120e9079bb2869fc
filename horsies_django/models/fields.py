"""Fields for stored JSON and arrays, and datetimes of the ORM made aware."""

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

    Django's own field requires the app ``django.contrib.postgres`` from Django 6 on.
    """

    def db_type(self, connection: Any) -> str:
        return "integer[]"

    def value_to_string(self, obj: Any) -> str:
        """Return the array as JSON, for a dump."""
        return json.dumps(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        """Read an array, also from a dump."""
        return json.loads(value) if isinstance(value, str) else value


class StoredJSON(models.JSONField):
    """A JSON value, or its text if Python cannot parse it: thousands of nested levels, a number
    with thousands of digits.

    Rows with such values can thus be listed and shown.
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
        """Store None as JSON's null in a column that is never NULL: what ``loaddata`` reads was
        one.
        """
        return super().get_db_prep_save(
            models.Value(None, self) if value is None and not self.null else value, connection
        )

    def deconstruct(self) -> Any:
        """Appear as a plain JSONField in migrations."""
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class KeptJSON(StoredJSON):
    """A JSON value that stays as it was written, in a column whose type the migration changes to a
    domain over json.

    jsonb has an order of its own for the keys of an object, and 1e16 comes out of it as a whole
    number. Lookups work as with jsonb: they read the column as that.
    """

    def get_col(self, alias: str, output_field: Any = None) -> Any:
        """Return the column as queries refer to it."""
        return KeptCol(alias, self, output_field)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Write the text of the value."""
        prepared = super().get_db_prep_save(value, connection)
        return Json(prepared.obj, prepared.dumps) if isinstance(prepared, Jsonb) else prepared


class KeptCol(Col):
    """A column of KeptJSON: jsonb for conditions and expressions, its text for Python."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return the column as jsonb."""
        sql, params = super().as_sql(compiler, connection)
        return f"{sql}::jsonb", params

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        """Return the column as text."""
        column, params = super().as_sql(compiler, compiler.connection)
        return f"{column}::text", params


class Moment(DateTimeField):
    """A time. One that Python does not have, such as infinity, is read as the nearest that it has.

    It is for columns that workers write for each task: no trigger checks these. So one odd row
    stops no list. Where ``values_list`` selects such a column by which the rows are ordered, it has
    to select ``F(column)``: else Django orders by what is selected, for which there is no index.
    """

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        """Return the column as it is selected; conditions and orders see it as it is."""
        return f"horsies_known_time({sql})", params

    def deconstruct(self) -> Any:
        """Appear as a plain DateTimeField in migrations."""
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs


def aware(value: dt.datetime) -> dt.datetime:
    """Return an aware datetime; with USE_TZ off, the ORM returns naive ones."""
    return timezone.make_aware(value) if timezone.is_naive(value) else value
