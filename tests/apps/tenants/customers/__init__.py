"""The tenants; the table is in the schema of all."""
