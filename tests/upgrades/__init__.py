"""What releases leave behind: a dump of the database of each, and the wheel of the last one."""
