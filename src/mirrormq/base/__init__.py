"""What every other package may import: types, limits, errors, the randomness port."""
