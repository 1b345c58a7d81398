"""From token batches to log-probabilities of responses, through the model's own forward."""
