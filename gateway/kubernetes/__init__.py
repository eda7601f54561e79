"""Kubernetes: what the chart may be told, the sidecar as it is put into a pod, and the webhook that puts it there."""
