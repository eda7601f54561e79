"""Prints a CycloneDX 1.6 bill of the Python packages under a folder; the same packages give the same bytes."""

from __future__ import annotations

import json
import sys
import uuid
from importlib.metadata import Distribution, distributions


def component(distribution: Distribution) -> dict[str, object]:
    """Return one package."""
    name = distribution.metadata["Name"]
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{distribution.version}"
    found: dict[str, object] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": distribution.version,
        "purl": purl,
    }
    if expression := distribution.metadata.get("License-Expression"):
        found["licenses"] = [{"expression": expression}]
    return found


def main(folder: str) -> None:
    """Print the bill."""
    components = sorted((component(each) for each in distributions(path=[folder])), key=lambda each: str(each["purl"]))
    names = "\n".join(str(each["purl"]) for each in components)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, names)}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "seawall"}},
        "components": components,
    }
    print(json.dumps(bill, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])
