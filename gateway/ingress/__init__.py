"""Towards the agents: the proxy, the runs API, the control plane."""
