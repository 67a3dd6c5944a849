"""Sandboxes on other machines, reached by an API alone: what the runtimes of pods and of podman's hosts share."""
