"""The scoreboard: runs of many turns, a fifth of them faulty, under four configurations, counted at the tool's ledger.

    python -m loadtests.scoreboard --runs 1000

The faults are those of the fault-injection benchmark in seed 000: network drops 8 %, tool exceptions 6 %, process kills 4 %,
format corruption 2 % of the turns. `world` is the tool and its ledger, `forkserver` gateways that are killed for real,
`contestants` the four configurations, `table` what is printed.
"""
