"""Model graphs as functions over weights, their loaders and the catalogue of weights."""
