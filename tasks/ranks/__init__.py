"""Programs that ranks run. They use files and networks, but no service."""
