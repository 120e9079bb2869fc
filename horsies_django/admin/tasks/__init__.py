"""The pages about tasks."""
