"""Where probability goes that a negative gradient takes: one softmax, and a language model."""
