"""An app that opens a connection and starts a thread when it is imported."""
