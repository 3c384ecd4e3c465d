"""The call page and the session inspector: plain ES modules, served as they are."""
