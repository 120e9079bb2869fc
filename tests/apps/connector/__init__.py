"""A database backend and a receiver that know of connections what the settings do not say."""
