"""The process that owns the models and does every call's work."""
