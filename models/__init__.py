"""Networks that studies train: language models of the Hub or a folder, and built-in ones."""
