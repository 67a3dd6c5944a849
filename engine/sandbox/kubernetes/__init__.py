"""Sandboxes as pods of a cluster: manifests (pure), the cluster's API, one pod's inside, the runtime over all of it."""
