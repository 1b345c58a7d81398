"""The ledger of a training: how much each example moved each answer, step by step."""
