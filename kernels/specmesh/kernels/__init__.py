"""Arithmetic on tensors: no session, no clock, no generator."""
