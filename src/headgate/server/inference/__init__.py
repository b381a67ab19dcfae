"""The routes that models are asked through."""
