"""Real daemons for tests, each in its own directory, which is always cleaned up."""
