"""Programs that ranks run. They know files and networks, and no service."""
