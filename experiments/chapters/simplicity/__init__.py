"""Which mappings from objects to messages are learned fast, and why."""
