"""The test project as it was before most of its tasks were written."""
