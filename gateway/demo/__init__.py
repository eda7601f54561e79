"""The demo: a run that fails, is undone, and then succeeds, against real tool servers."""
