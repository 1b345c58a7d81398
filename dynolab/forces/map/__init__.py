"""Force maps: many updating responses on many observed ones, token by token."""
