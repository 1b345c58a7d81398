"""What a person starts: one file per flow."""
