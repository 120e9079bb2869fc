"""Tags of the templates of the admin."""
