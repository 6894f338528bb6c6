"""The components that ship: frontend, processor, worker."""
