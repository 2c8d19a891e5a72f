"""The port to whatever stores segments."""
