"""Model bundles that ship with the package: ``<policy>/<version>/``."""
