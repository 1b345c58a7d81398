"""The empirical tangent kernel: as an operator, its size, its stability."""
