"""What a session is: pure types and one reducer. Imports nothing of the others."""
