"""Sandboxes on a pool of podman hosts, each reached by its API alone."""
