"""The explorer's page, on Dash. What it shows is named by its address (`State`)."""
