"""Networks that studies train: language models from the Hub or a folder, and built-in ones."""
