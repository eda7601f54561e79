"""Thin files, one per stage, each holding one rule of `core/` around the next handler. The order is in `pipeline.py`."""
