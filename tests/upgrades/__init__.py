"""The schemas of earlier releases, with some rows: what today's migrations start from."""
