"""The built-in world: facts, questions, answers, and every probe kind."""
