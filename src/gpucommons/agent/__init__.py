"""The assembly of the agent from settings. Contains no logic of its own."""
