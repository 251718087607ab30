"""To and from other projects' formats."""
