"""Which request gets which slots, and when. Takes values and the time, returns values."""
