"""The model and how it is cut into stages; knows no network."""
