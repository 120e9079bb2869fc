"""The pages about queues."""
