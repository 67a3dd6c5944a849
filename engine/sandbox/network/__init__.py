"""What a sandbox may reach in which phase, and the process through which it does."""
