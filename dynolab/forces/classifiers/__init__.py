"""Kernel and forces of classifiers, many networks at once."""
