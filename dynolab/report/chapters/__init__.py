"""The pages of the chapters: claims, verdicts, and the figures that show them."""
