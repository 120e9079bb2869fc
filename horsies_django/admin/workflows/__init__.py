"""The admin pages for workflow runs and their nodes."""
