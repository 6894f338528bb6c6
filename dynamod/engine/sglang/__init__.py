"""SGLang in the worker process (`Engine`); its scheduler and detokenizer are processes of its own below it."""
