"""From token batches to log-probabilities of responses, by the model's own forward."""
