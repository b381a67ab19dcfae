"""Ollama's own API: the bodies of `/api/chat` and `/api/embed`, and what comes back, lines of JSON."""
