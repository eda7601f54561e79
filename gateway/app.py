"""The composition root: the one file that names concrete adapters."""
