"""The page of policies whose answers are judged."""
