"""How audio and events reach the client."""
