"""Who inverts what in a data-parallel job, and how ranks exchange it."""
