"""From a model's files to prompts and text: card, tokenizer, chat template, detokeniser, stop strings.

Import from the modules (`preprocess.fetch.fetch`, `preprocess.card.read_card`, `preprocess.model.Model`,
`preprocess.output.Output`, ...): nothing is loaded that is not asked for.
"""
