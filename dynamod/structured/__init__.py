"""Answers that keep to a form: what a request asks for, whether it can be had, and which token may come next."""
