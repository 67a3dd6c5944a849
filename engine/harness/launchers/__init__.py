"""Programs that adapters copy into sandboxes, where the harness's own interpreter runs them.

Invariant: each imports the standard library, its harness and `process` beside it, never anything else of `engine`.
"""
