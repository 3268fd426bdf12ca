"""The training loop and its parts: building, steps, evaluation, schedules and job ranks."""
