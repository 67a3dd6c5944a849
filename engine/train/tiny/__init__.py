"""The project's own tiny sparse model: corpus, tokeniser, weights, each deterministic from a seed.

Nothing of it is third-party text or weights; `engine.train.models.TinyQwen3Moe` puts the parts together.
"""
