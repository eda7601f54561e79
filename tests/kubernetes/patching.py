"""JSON Patch (RFC 6902) as an API server applies it; written apart from the code that makes patches."""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["apply_patch"]


def apply_patch(document: Any, patch: list[dict[str, Any]]) -> Any:
    """Return the document after every operation; KeyError where a place does not exist."""
    result = copy.deepcopy(document)
    for operation in patch:
        *steps, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place = result
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if operation["op"] == "remove":
            del place[last]
        elif operation["op"] == "replace" and last not in place:
            raise KeyError(operation["path"])
        else:
            place[last] = copy.deepcopy(operation["value"])
    return result
