"""Pages, one a file: which panels stand on them, in which order."""
