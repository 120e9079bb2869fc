"""The tenants, whose table is in the schema that all share."""
