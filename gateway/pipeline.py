"""The ordered list of stages, each line with the reason for its place."""
