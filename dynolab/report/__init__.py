"""Pictures and the report of a study; what they say is measured in `dynolab.probes`."""
