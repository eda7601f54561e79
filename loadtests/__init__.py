"""The benchmark: what a call costs through Seawall, beside a direct call and a bare aiohttp proxy, in one run.

`python -m loadtests.bench` (or `make bench`) runs it; `docs/performance.md` explains the method and holds the figures.
"""
