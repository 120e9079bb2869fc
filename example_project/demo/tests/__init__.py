"""Tests of the parts of the demo that need neither a site nor a worker."""
