"""What a policy's samples are worth, and what an update does to right answers."""
