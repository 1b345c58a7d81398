"""What stages share: models, pages, answers, inputs. No file here defines a stage."""
