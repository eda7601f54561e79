"""Background services: each a `run_once(now)` and a loop around it."""
