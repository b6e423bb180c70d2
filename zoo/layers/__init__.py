"""What two or more models share."""
