"""What the tool servers hold at one moment, and how two moments differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Snapshot", "differences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the tool servers hold.

    Attributes:
        volumes: volume id and the token it was made with.
        names: reserved names (buckets).
        files: `name/key` and content.
        clusters: names of clusters.
        holds: open holds on cards, by payment id, in cents.
        taken: money taken, by payment id, in cents.
        released: ids of holds that were released; they remain as history and are no difference.
    """

    volumes: Mapping[str, str]
    names: frozenset[str]
    files: Mapping[str, str]
    clusters: frozenset[str]
    holds: Mapping[str, int]
    taken: Mapping[str, int]
    released: frozenset[str] = frozenset()

    def rows(self) -> dict[str, str]:
        """Say it in a few words a line, for people."""
        return {
            "volumes": _listed(self.volumes.values()),
            "names": _listed(self.names),
            "files": _listed(self.files),
            "clusters": _listed(self.clusters),
            "money on hold": _money(self.holds),
            "money taken": _money(self.taken),
        }


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Name everything that is in one world and not in the other; empty if they are alike."""
    pairs: tuple[tuple[str, Mapping[str, object], Mapping[str, object]], ...] = (
        ("volume", before.volumes, after.volumes),
        ("name", dict.fromkeys(before.names), dict.fromkeys(after.names)),
        ("file", before.files, after.files),
        ("cluster", dict.fromkeys(before.clusters), dict.fromkeys(after.clusters)),
        ("hold", before.holds, after.holds),
        ("payment", before.taken, after.taken),
    )
    found = []
    for kind, old, new in pairs:
        found += [f"{kind} {name} is new" for name in sorted(new.keys() - old.keys())]
        found += [f"{kind} {name} is gone" for name in sorted(old.keys() - new.keys())]
        found += [f"{kind} {name} has changed" for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _money(amounts: Mapping[str, int]) -> str:
    return f"{sum(amounts.values()) / 100:.2f} EUR" if amounts else "none"
