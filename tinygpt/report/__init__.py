"""What a person looks at: pictures and pages of runs and models."""
