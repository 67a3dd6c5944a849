"""Rows of public task sets: one reader a format, one record for all, one table that the project writes itself."""
