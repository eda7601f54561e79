"""Layer 1 of what shows that nothing is lost and nothing doubled: the real pipeline under a deterministic simulation.

Real: stages, trajectories, saga, settler, unwinder, finalizer, escalator, the desk at which people decide, breakers, queues,
the journal's group commit. Scripted: time (virtual), people, verifiers, the disk (slow, fails, works and fails, stalls), the
order in which whatever is ready runs (seeded), the network (loses, delays, duplicates, answers wrongly) and the tools
(keep a ledger that survives everything). The process may end at any await; then all memory is gone and a new one starts.
One seed is one schedule: a failing one is printed and repeats exactly (`python -m tests.simulation SEED`).

Method: FoundationDB's simulation (Zhou et al., SIGMOD 2021); temporalio/sdk-python's own event loop.
"""
