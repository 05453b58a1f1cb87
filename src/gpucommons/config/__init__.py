"""Settings from one TOML file, the environment and flags, as typed values with their origins."""
