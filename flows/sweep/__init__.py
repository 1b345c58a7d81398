"""The sweep: trials with settings of another flow, whose stages share results."""
