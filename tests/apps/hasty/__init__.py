"""An app that opens things when it is imported."""
