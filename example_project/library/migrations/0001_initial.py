"""The tables of the library."""

from __future__ import annotations

import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Document",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("folder", models.CharField(blank=True, max_length=200, verbose_name="folder")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("kind", models.CharField(max_length=10, verbose_name="kind")),
                ("text", models.TextField(blank=True, verbose_name="text")),
                ("size", models.IntegerField(verbose_name="bytes")),
                ("digest", models.CharField(max_length=64, verbose_name="SHA-256")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="imported",
                    ),
                ),
                ("lines", models.IntegerField(null=True, verbose_name="lines")),
                ("words", models.IntegerField(null=True, verbose_name="words")),
                (
                    "search",
                    django.contrib.postgres.search.SearchVectorField(
                        editable=False, null=True, verbose_name="search vector"
                    ),
                ),
                ("is_published", models.BooleanField(default=True, verbose_name="published")),
                (
                    "index_task",
                    models.UUIDField(
                        db_index=True, editable=False, null=True, verbose_name="indexing task"
                    ),
                ),
                ("indexed_at", models.DateTimeField(null=True, verbose_name="indexed")),
                (
                    "verify_task",
                    models.UUIDField(
                        db_index=True, editable=False, null=True, verbose_name="checking task"
                    ),
                ),
                ("verified_at", models.DateTimeField(null=True, verbose_name="checked")),
            ],
            options={
                "verbose_name": "document",
                "verbose_name_plural": "documents",
                "ordering": ("folder", "name", "pk"),
                "indexes": [
                    django.contrib.postgres.indexes.GinIndex(
                        fields=["search"], name="library_document_search"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("folder", "name", "digest"), name="library_document_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Fingerprint",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "value",
                        "document_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("value", models.BigIntegerField(verbose_name="value")),
                (
                    "document",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        to="library.document",
                        verbose_name="document",
                    ),
                ),
            ],
            options={
                "verbose_name": "fingerprint",
                "verbose_name_plural": "fingerprints",
            },
        ),
        migrations.CreateModel(
            name="Announcement",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="at"
                    ),
                ),
                ("text", models.CharField(max_length=500, verbose_name="text")),
                (
                    "document",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        to="library.document",
                        verbose_name="document",
                    ),
                ),
            ],
            options={
                "verbose_name": "announcement",
                "verbose_name_plural": "announcements",
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="Upload",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("folder", models.CharField(blank=True, max_length=200, verbose_name="folder")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("content", models.BinaryField(verbose_name="content")),
                ("digest", models.CharField(max_length=64, verbose_name="SHA-256")),
                ("submission", models.UUIDField(editable=False, verbose_name="submission")),
                (
                    "review",
                    models.BooleanField(
                        default=False, verbose_name="reviewed before it is published"
                    ),
                ),
                (
                    "uploaded_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="uploaded",
                    ),
                ),
                (
                    "import_run",
                    models.UUIDField(editable=False, null=True, unique=True, verbose_name="import"),
                ),
                (
                    "document",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="library.document",
                        verbose_name="document",
                    ),
                ),
            ],
            options={
                "verbose_name": "upload",
                "verbose_name_plural": "uploads",
                "ordering": ("-pk",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("submission", "folder", "name", "digest"),
                        name="library_upload_once",
                    )
                ],
            },
        ),
    ]
