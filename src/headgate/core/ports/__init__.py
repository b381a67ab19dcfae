"""What the rooms above core must bring: a clock, chance, providers."""
