"""Descriptions of interfaces, read as drafts of manifests: a module for each kind."""
