"""Engines that users write in Python: their handlers, with requests in NVIDIA Dynamo's form."""
