"""Training targets under label noise, and which examples are learned faster."""
