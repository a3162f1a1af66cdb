"""From snapshot and request to arrays: one schema for training and serving."""
