"""The settings of a run: their types and limits, and how configurations are read."""
