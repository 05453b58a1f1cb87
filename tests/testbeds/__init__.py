"""Real daemons for tests: started by hand in a directory of their own, and cleaned up always."""
