"""What to teach under label noise, and what is learned faster."""
