"""A journal in memory."""
