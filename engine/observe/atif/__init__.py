"""Trajectories of a run as ATIF v1.8 documents (Harbor's Agent Trajectory Interchange Format)."""
