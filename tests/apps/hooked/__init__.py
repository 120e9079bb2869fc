"""An app with receivers of all signals, middleware, and metadata for every send."""
