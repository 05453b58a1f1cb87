"""One file per metric vocabulary: Snapshot -> families. Knows no socket and reads no machine."""
