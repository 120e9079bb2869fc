"""An app with a metric of its own."""
