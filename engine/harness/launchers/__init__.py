"""Programs that adapters copy into sandboxes, where the harness's own interpreter runs them.

Invariant: each is one self-contained file that imports the standard library and its harness alone, never `engine`.
"""
