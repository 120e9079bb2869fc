"""The admin pages for queues."""
