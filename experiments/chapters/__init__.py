"""Beyond finetuning: simplicity, classification, supervision, transfer, squeezing, coupling."""
