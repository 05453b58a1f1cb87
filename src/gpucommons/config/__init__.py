"""One TOML file, the environment and flags, as typed values that know where they came from."""
