"""A project with a schema for each tenant."""
