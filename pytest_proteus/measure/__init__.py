"""Statistics of finished runs: pure functions of the artifacts on disk. Nothing here runs, writes or asks a model."""
