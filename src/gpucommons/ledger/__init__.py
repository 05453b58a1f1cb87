"""GPU-seconds, byte-seconds and joules per owner, durable; and the events beside them."""
