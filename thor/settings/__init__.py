"""What a user sets, checked: options, schedules, loss scale, the inner optimizer."""
