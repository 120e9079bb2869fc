"""An app with metrics of its own."""
