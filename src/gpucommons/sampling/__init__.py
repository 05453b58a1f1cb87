"""The clock: runs each source at its own cadence and deadline, and publishes the Snapshot."""
