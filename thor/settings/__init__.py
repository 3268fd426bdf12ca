"""The settings of THOR and their checks: options, schedules, loss scale and inner optimizer."""
