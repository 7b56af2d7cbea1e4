"""The draft service: proposes tokens with their probabilities."""
