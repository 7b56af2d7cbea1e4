"""The router: clients call it; it chooses drafts, has their blocks verified, streams text."""
