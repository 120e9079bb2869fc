"""The URLs of the library."""

from __future__ import annotations

from django.urls import path

from example_project.library import views

app_name = "library"
urlpatterns = [
    path("", views.documents, name="documents"),
    path("documents/<int:pk>/", views.document, name="document"),
    path("documents/<int:pk>/raw/", views.raw, name="raw"),
    path("upload/", views.upload, name="upload"),
    path("uploads/", views.uploads, name="uploads"),
    path("imports/<uuid:workflow_id>/", views.import_run, name="import"),
    path("results/", views.find_result, name="find_result"),
    path("results/<uuid:task_id>/", views.result, name="result"),
    path("search/", views.search_page, name="search"),
    path("near-duplicates/", views.near_duplicates_page, name="near_duplicates"),
    path("verify/", views.verify, name="verify"),
]
