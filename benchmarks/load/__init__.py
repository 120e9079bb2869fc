"""The measured tasks and the bare worker."""
