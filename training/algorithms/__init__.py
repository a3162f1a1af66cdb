"""Learning algorithms, one per readable file, each with a typed dataclass of its hyperparameters."""
