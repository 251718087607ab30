"""To other projects' formats."""
