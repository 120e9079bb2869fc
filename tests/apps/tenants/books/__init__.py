"""The books, of which each tenant has a table of its own."""
