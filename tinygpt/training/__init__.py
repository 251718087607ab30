"""The LightningModule and what happens around its steps: one file for each concern."""
