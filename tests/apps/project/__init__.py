"""The app of the test project: the tasks that tests send."""
