"""From judged trajectories to training rows, in numpy alone.

    Scored → Group (`groups.make_groups`) → Row, Batch (`rows.make_batch`) → checked (`alignment.check_tokens`)

Invariant: a sampled token of a kept trajectory becomes a target exactly once; an excluded trajectory leaves no trace.
"""
