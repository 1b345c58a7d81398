"""What is claimed, and the verdict that a study's measurements give."""
