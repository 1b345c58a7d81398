"""Forces between classes, and the learning path of every example."""
