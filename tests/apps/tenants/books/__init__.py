"""What each tenant has for itself."""
