"""Seawall: an HTTP sidecar and tool gateway for AI agents.

Start reading in `gateway.core`: everything that decides lives there, everything else obeys.
"""

__version__ = "0.1.0"
