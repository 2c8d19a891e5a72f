"""What an application uses."""
