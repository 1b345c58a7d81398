"""Claims, and the verdicts that a study's measurements give on them."""
