"""The shapes of inference requests and answers, and pure translations between them. `chat` is the hub."""
