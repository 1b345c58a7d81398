"""Forces between classes, and learning paths of every example."""
