"""Harness adapters: the offline minimal one, the real command-line agents, and the names they go by.

Nothing here decides when an episode runs, what is measured of it, or whether it counts.
"""
