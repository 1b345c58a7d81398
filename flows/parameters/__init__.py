"""From a study file, with changes, to the parameters of a flow."""
