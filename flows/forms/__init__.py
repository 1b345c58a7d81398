"""What a person fills in in Prefect's interface: flat forms over study files."""
