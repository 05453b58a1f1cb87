"""The agent put together from settings. Decides nothing: it only knows which part needs which other."""
