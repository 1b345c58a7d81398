"""The study: data → base → SFT → preference training → probe → forces → report."""
